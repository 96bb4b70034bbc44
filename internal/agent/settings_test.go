package agent

import (
	"reflect"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
)

// A reload replaces every field of Settings, and does not change the host facts.
func TestReloadTakesEverySetting(t *testing.T) {
	cfg := compiletest.Config()
	a := New(Config{Compile: cfg}, nil, nil, zap.NewNop())
	next := Settings{
		Compile: compile.Settings{Scheduler: "wlc", StrictARP: true}, AuditInterval: time.Hour, CheckInterval: 3 * time.Second, MinInterval: time.Minute,
		DrainTimeout: time.Second,
	}
	a.reload(next)

	got, wanted := reflect.ValueOf(*a.cfg), reflect.ValueOf(next)
	for i := range wanted.NumField() {
		name, have := wanted.Type().Field(i).Name, got.FieldByName(wanted.Type().Field(i).Name)
		if wanted.Field(i).IsZero() {
			t.Errorf("%s: the test sets no value for this field", name)
		}
		if compiled, is := have.Interface().(compile.Config); is {
			have = reflect.ValueOf(compiled.Settings)
		}
		if !reflect.DeepEqual(have.Interface(), wanted.Field(i).Interface()) {
			t.Errorf("%s is %v after a reload, want %v", name, have, wanted.Field(i))
		}
	}
	if a.schedule.Intervals != a.cfg.intervals() {
		t.Errorf("the schedule's intervals are %+v", a.schedule.Intervals)
	}
	if !reflect.DeepEqual(a.cfg.Compile.Host, cfg.Host) {
		t.Errorf("a reload has changed the host facts: %+v", a.cfg.Compile.Host)
	}
}
