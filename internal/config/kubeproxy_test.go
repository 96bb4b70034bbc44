package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Each field of kube-proxy's types is a setting, a translation or inapplicable. The tables contain no other fields.
func TestEveryFieldOfKubeProxyIsKnown(t *testing.T) {
	have := map[string]reflect.StructField{}
	leaves("", reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), have)
	known := kubeProxyFields()
	for path := range have {
		if _, ok := known[path]; !ok && !strings.HasPrefix(path, "logging.options.") {
			t.Errorf("field %s of kube-proxy is not in any table", path)
		}
	}
	for path := range known {
		if _, ok := have[path]; !ok && path != "logging.options" {
			t.Errorf("kube-proxy has no field %s", path)
		}
	}
}

// A zero value counts as set only if kube-proxy's type, a pointer or a bool, distinguishes it from "not set".
func TestZeroIsUnset(t *testing.T) {
	have := map[string]reflect.StructField{}
	leaves("", reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), have)
	for _, row := range table {
		if row.kubeProxy == otherField {
			continue
		}
		field := have[row.path]
		isValue := field.Type.Kind() == reflect.Pointer || field.Type.Kind() == reflect.Bool
		if isValue == (row.kubeProxy == zeroIsUnset) {
			t.Errorf("%s: zero counts as a value in kube-proxy: %t (type %s)", row.path, isValue, field.Type)
		}
	}
}

// leaves collects the fields of a type that are not structs, by their paths in a file.
func leaves(path string, typ reflect.Type, have map[string]reflect.StructField) {
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		full := strings.Trim(path+"."+name, ".")
		switch {
		case name == "-":
		case field.Type.Kind() != reflect.Struct || slices.Contains([]string{"Duration", "TimeOrMetaDuration", "QuantityValue"}, field.Type.Name()):
			have[full] = field
		default:
			leaves(full, field.Type, have)
		}
	}
}

// All flags of kube-proxy 1.36 on Linux are known. The run command defines its one-shot flags.
func TestEveryFlagOfKubeProxyIsKnown(t *testing.T) {
	var f Flags
	set := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.AddRun(set)
	for name := range strings.FieldsSeq(`
		bind-address bind-address-hard-fail boot-id-file cluster-cidr config config-sync-period conntrack-max-per-core conntrack-min
		conntrack-tcp-be-liberal conntrack-tcp-timeout-close-wait conntrack-tcp-timeout-established conntrack-udp-timeout
		conntrack-udp-timeout-stream detect-local-mode feature-gates healthz-bind-address healthz-port hostname-override
		iptables-localhost-nodeports iptables-masquerade-bit iptables-min-sync-period iptables-sync-period ipvs-exclude-cidrs
		ipvs-min-sync-period ipvs-scheduler ipvs-strict-arp ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout
		kube-api-burst kube-api-content-type kube-api-qps kubeconfig log-flush-frequency log-json-info-buffer-size log-json-split-stream
		log-text-info-buffer-size log-text-split-stream logging-format machine-id-file masquerade-all master
		metrics-bind-address metrics-port nodeport-addresses oom-score-adj pod-bridge-interface pod-interface-name-prefix profiling
		proxy-mode show-hidden-metrics-for-version v vmodule`) {
		if set.Lookup(name) == nil {
			t.Errorf("flag --%s of kube-proxy is not known", name)
		}
	}
}
