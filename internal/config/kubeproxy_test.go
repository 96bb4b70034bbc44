package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	theirs "k8s.io/kube-proxy/config/v1alpha1"
)

// TestEveryFieldOfKubeProxyIsKnown: each field of its types is a setting, a translation, or known to do nothing; and the
// tables name no field that its types do not have.
func TestEveryFieldOfKubeProxyIsKnown(t *testing.T) {
	have := map[string]reflect.StructField{}
	leaves("", reflect.TypeFor[theirs.KubeProxyConfiguration](), have)
	known := theirFields()
	for path := range have {
		if _, ok := known[path]; !ok && !strings.HasPrefix(path, "logging.options.") {
			t.Errorf("kube-proxy has the field %s: it needs a setting or a row among the inapplicable", path)
		}
	}
	for path := range known {
		if _, ok := have[path]; !ok && path != "logging.options" {
			t.Errorf("kube-proxy has no field %s", path)
		}
	}
}

// TestBlankFields: where kube-proxy can tell "0" from "not set", because its field is a pointer, so do we.
func TestBlankFields(t *testing.T) {
	have := map[string]reflect.StructField{}
	leaves("", reflect.TypeFor[theirs.KubeProxyConfiguration](), have)
	for _, row := range table {
		field, ok := have[row.theirs.path]
		if !ok {
			continue
		}
		tells := field.Type.Kind() == reflect.Pointer || field.Type.Kind() == reflect.Bool
		if tells == row.theirs.blank {
			t.Errorf("%s: blank is %t, and kube-proxy's type is %s", row.path, row.theirs.blank, field.Type)
		}
	}
}

// leaves collects the fields of a type that have no fields of their own, by their paths in a file.
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

// TestEveryFlagOfKubeProxyIsKnown: its flags on Linux (1.36), but for those that ask for something else than running; the command
// run has these.
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
			t.Errorf("kube-proxy's flag --%s is not known", name)
		}
	}
}
