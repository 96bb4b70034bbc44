package watch

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// TestEqualSeesEveryField changes each field of the model by reflection. If the model gains a field, the test fails until equal.go compares
// it.
func TestEqualSeesEveryField(t *testing.T) {
	c := newTestConverter()
	service := func() *model.Service {
		s := *c.service(testService("web", nil), "").Service
		s.Slices = []*model.EndpointSlice{{}}
		return &s
	}
	slice := func() *model.EndpointSlice { return c.endpointSlice(testSlice("web-1", "web", nil), "").Slice }
	shared := *service()
	if other := shared; !equalService(&shared, &other) || !equalSlice(slice(), slice()) {
		t.Fatal("equal values are not equal")
	}
	base := service()
	forEachField(t, reflect.ValueOf(base).Elem(), "Service", func() reflect.Value { s := *base; return reflect.ValueOf(&s) },
		func(v reflect.Value) bool { return equalService(base, v.Interface().(*model.Service)) })
	baseSlice := slice()
	forEachField(t, reflect.ValueOf(baseSlice).Elem(), "EndpointSlice", func() reflect.Value { s := *baseSlice; return reflect.ValueOf(&s) },
		func(v reflect.Value) bool { return equalSlice(baseSlice, v.Interface().(*model.EndpointSlice)) })
	baseEndpoint := &baseSlice.Endpoints[0]
	forEachField(t, reflect.ValueOf(baseEndpoint).Elem(), "Endpoint", func() reflect.Value { e := *baseEndpoint; return reflect.ValueOf(&e) },
		func(v reflect.Value) bool { return equalEndpoint(*baseEndpoint, *v.Interface().(*model.Endpoint)) })
	forEachField(t, reflect.ValueOf(&model.Hints{}).Elem(), "Hints", func() reflect.Value { return reflect.ValueOf(&model.Hints{}) },
		func(v reflect.Value) bool { return (&model.Hints{}).Equal(v.Interface().(*model.Hints)) })
	baseNode := c.node(testNode(), "").Node
	forEachField(t, reflect.ValueOf(baseNode).Elem(), "Node", func() reflect.Value { n := *baseNode; return reflect.ValueOf(&n) },
		func(v reflect.Value) bool { return equalNode(baseNode, v.Interface().(*model.Node)) })
}

func forEachField(t *testing.T, of reflect.Value, name string, clone func() reflect.Value, equal func(reflect.Value) bool) {
	t.Helper()
	for i := range of.NumField() {
		field := name + "." + of.Type().Field(i).Name
		changed := clone()
		f := changed.Elem().Field(i)
		if f.Kind() == reflect.Slice {
			// Lists are compared element by element, so the elements must be comparable with ==. Endpoints are compared by
			// their own function, which this test also covers.
			if elem := f.Type().Elem(); !elem.Comparable() && elem != reflect.TypeFor[model.Endpoint]() {
				t.Errorf("%s: elements are not comparable with ==; equal.go must compare them field by field", field)
			}
			f.Set(reflect.MakeSlice(f.Type(), f.Len()+1, f.Len()+1))
		} else {
			f.Set(otherValue(t, f))
		}
		if equal(changed) {
			t.Errorf("%s: a change is not detected", field)
		}
	}
}

func otherValue(t *testing.T, v reflect.Value) reflect.Value {
	t.Helper()
	other := reflect.New(v.Type()).Elem()
	switch v.Interface().(type) {
	case *model.Hints:
		other.Set(reflect.ValueOf(&model.Hints{ForNodes: []string{"other"}}))
		return other
	case time.Time:
		other.Set(reflect.ValueOf(time.Unix(1, 0)))
		return other
	case netip.Addr:
		other.Set(reflect.ValueOf(netip.MustParseAddr("192.0.2.99")))
		return other
	case model.Balancing: // compared with reflect.DeepEqual
		other.Set(reflect.ValueOf(model.Balancing{Weights: model.Weights{Pods: []model.NamedWeight{{}}}}))
		return other
	case model.ServiceID:
		other.Set(reflect.ValueOf(model.ServiceID{Name: "other"}))
		return other
	}
	switch v.Kind() {
	case reflect.String:
		other.SetString(v.String() + "x")
	case reflect.Bool:
		other.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64, reflect.Int32:
		other.SetInt(v.Int() + 1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		other.SetUint(v.Uint() + 1)
	default:
		t.Fatalf("the test cannot change a %v; add this type", v.Type())
	}
	return other
}
