package chart

import (
	"slices"
	"strings"
	"testing"
)

// refused contains invalid values and the expected errors.
type refused []struct{ values, want string }

// refusedBySchema contains values that are invalid regardless of others.
var refusedBySchema = refused{
	{"nodeselector: {a: b}", "nodeselector"},
	{"image: {tagg: v1}", "tagg"},
	{"image: {registry: example.com/team}", "/image/registry"},
	{"image: {repository: 'UPPER'}", "/image/repository"},
	{"image: {repository: ''}", "/image/repository"},
	{"image: {tag: 'a b'}", "/image/tag"},
	{"image: {digest: 'sha256:12'}", "/image/digest"},
	{"image: {pullPolicy: Sometimes}", "/image/pullPolicy"},
	{"imagePullSecrets: [secret]", "/imagePullSecrets/0"},
	{"fullnameOverride: Kube_IPVS", "/fullnameOverride"},
	{"commonLabels: {a: 1}", "/commonLabels/a"},
	{"commonLabels: {'a b': c}", "'a b'"}, // Helm's validator reports another field first
	{"commonLabels: {app.kubernetes.io/name: web}", "app.kubernetes.io/name"},
	{"podLabels: {app.kubernetes.io/instance: web}", "app.kubernetes.io/instance"},
	{"metrics: {podMonitor: {labels: {helm.sh/chart: web}}}", "helm.sh/chart"},
	{"podAnnotations: {checksum/config: abc}", "checksum/config"},
	{"extraEnv: [{name: NODE_NAME, value: a}]", "/extraEnv/0/name"},
	{"extraVolumes: [{name: sysctls, emptyDir: {}}]", "/extraVolumes/0/name"},
	{"config: text", "/config"},
	{"config: {kind: KubeProxyConfiguration}", "/config/kind"},
	{"config: {ipvs: {shceduler: wrr}}", "shceduler"},
	{"config: {ipvs: {scheduler: wr}}", "/config/ipvs/scheduler"},
	{"config: {ipvs: {syncPeriod: 30}}", "/config/ipvs/syncPeriod"},
	{"config: {ipvs: {strictARP: 'yes'}}", "/config/ipvs/strictARP"},
	{"config: {iptables: {masqueradeBit: 32}}", "/config/iptables/masqueradeBit"},
	{"config: {externalIPs: {ranges: {a: b}}}", "/config/externalIPs/ranges"},
	{"config: {ipvs: wrr}", "/config/ipvs"},
	{"kubeProxyConfig: {apiVersion: kubeproxy.config.k8s.io/v1beta1}", "/kubeProxyConfig/apiVersion"},
	{"existingConfigMap: {name: Kube_Proxy}", "/existingConfigMap/name"},
	{"existingConfigMap: {mountPath: relative}", "/existingConfigMap/mountPath"},
	{"existingConfigMap: {mountPath: /proc/sys}", "/existingConfigMap/mountPath"},
	{"apiServer: {host: 'https://192.0.2.1'}", "/apiServer/host"},
	{"apiServer: {port: 0}", "/apiServer/port"},
	{"apiServer: {port: '6443'}", "/apiServer/port"},
	{"kubeProxyCheck: 'no'", "/kubeProxyCheck"},
	{"extraArgs: [log-level=debug]", "/extraArgs/0"},
	{"extraArgs: --log-level=debug", "/extraArgs"},
	{"extraEnv: {GOMEMLIMIT: 200MiB}", "/extraEnv"},
	{"extraEnv: [{name: GOMEMLIMIT, value: 200}]", "/extraEnv/0/value"},
	{"extraVolumes: [{secret: {secretName: a}}]", "name"},
	{"extraVolumeMounts: [{name: a, mountPath: relative}]", "/extraVolumeMounts/0/mountPath"},
	{"extraVolumeMounts: [{name: a, mountPath: /a, readonly: true}]", "readonly"},
	{"healthPort: 70000", "/healthPort"},
	{"resources: {requests: {memory: lots}}", "/resources/requests/memory"},
	{"resources: {claims: []}", "claims"},
	{"affinity: {podaffinity: {}}", "podaffinity"},
	{"tolerations: [{operator: Any}]", "/tolerations/0/operator"},
	{"tolerations: [{effect: NoScheduling}]", "/tolerations/0/effect"},
	{"priorityClassName: ''", "/priorityClassName"},
	{"updateStrategy: {type: Recreate}", "/updateStrategy/type"},
	{"updateStrategy: {rollingUpdate: {maxUnavailable: 0}}", "maxUnavailable"},
	{"updateStrategy: {rollingUpdate: {maxSurge: 1}}", "maxSurge"},
	{"seLinuxOptions: {typ: spc_t}", "typ"},
	{"podAnnotations: {a: true}", "/podAnnotations/a"},
	{"serviceAccount: {create: 'yes'}", "/serviceAccount/create"},
	{"rbac: {rules: []}", "rules"},
	{"privileged: true", "privileged"},
	{"metrics: {bindAddress: localhost}", "/metrics/bindAddress"},
	{"metrics: {bindAddress: '0.0.0.0:10249'}", "/metrics/bindAddress"},
	{"metrics: {port: 1.5}", "/metrics/port"},
	{"metrics: {podMonitor: {interval: soon}}", "/metrics/podMonitor/interval"},
	{"metrics: {prometheusRule: {interval: 1m}}", "interval"},
	{"metrics: {prometheusRule: {alerts: {KubeIPVSDrfit: {enabled: false}}}}", "KubeIPVSDrfit"},
	{"metrics: {prometheusRule: {alerts: {KubeIPVSDrift: {for: soon}}}}", "/metrics/prometheusRule/alerts/KubeIPVSDrift/for"},
	{"metrics: {prometheusRule: {alerts: {KubeIPVSDown: {threshold: 3}}}}", "threshold"}, // this alert has no threshold
	{"metrics: {prometheusRule: {alerts: {KubeIPVSDrift: {threshold: many}}}}", "/metrics/prometheusRule/alerts/KubeIPVSDrift/threshold"},
	{"metrics: {prometheusRule: {alerts: {KubeIPVSDataPlane: {wanted: ebpf}}}}", "/metrics/prometheusRule/alerts/KubeIPVSDataPlane/wanted"},
	{"metrics: {prometheusRule: {clusterLabel: k8s-cluster}}", "/metrics/prometheusRule/clusterLabel"},
	{"metrics: {prometheusRule: {runbookURL: docs}}", "/metrics/prometheusRule/runbookURL"},
	{"metrics: {podMonitor: {relabelings: {a: b}}}", "/metrics/podMonitor/relabelings"},
	{"revisionHistoryLimit: -1", "/revisionHistoryLimit"},
	{"global: {imageRegistry: example.com/team}", "/global/imageRegistry"},
}

// refusedByTemplates contains values that contradict each other.
var refusedByTemplates = refused{
	{"{config: {clusterCIDR: 10.0.0.0/8}, kubeProxyConfig: {mode: ipvs}}", "config and kubeProxyConfig are set"},
	{"{config: {clusterCIDR: 10.0.0.0/8}, existingConfigMap: {name: other}}", "config and existingConfigMap.name are set"},
	{"apiServer: {required: true}", "--set apiServer.host="},
	{"config: {healthzBindAddress: '0.0.0.0:9999'}", `healthPort is 10256, but healthzBindAddress is "0.0.0.0:9999"`},
	{"extraArgs: ['--healthz-bind-address=0.0.0.0:9999']", `healthPort is 10256, but healthzBindAddress is "0.0.0.0:9999"`},
	{"extraArgs: ['--metrics-bind-address=0.0.0.0:9999']", `metrics.port is 10249, but metricsBindAddress is "0.0.0.0:9999"`},
	{"extraArgs: [--healthz-port=9999]", `healthPort is 10256, but healthzBindAddress is "0.0.0.0:9999"`},
	{"{extraArgs: [--metrics-bind-address=], metrics: {podMonitor: {enabled: true}}}", "--set metrics.bindAddress=0.0.0.0"},
	{"kubeProxyConfig: {metricsBindAddress: '0.0.0.0:9999'}", `metrics.port is 10249, but metricsBindAddress is "0.0.0.0:9999"`},
	{"metrics: {podMonitor: {enabled: true}}", "--set metrics.bindAddress=0.0.0.0"},
	{"{config: {metricsBindAddress: null}, metrics: {podMonitor: {enabled: true}}}", "metrics are served on 127.0.0.1 only"},
	{"metrics: {scrapeAnnotations: true}", "--set metrics.bindAddress=0.0.0.0"},
	{"metrics: {bindAddress: 0.0.0.0, podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}", "enable one"},
}

func TestValuesThatAreRefused(t *testing.T) {
	for _, c := range slices.Concat(refusedBySchema, refusedByTemplates) {
		_, err := render(t, parse(t, c.values))
		if err == nil {
			t.Errorf("%s: no error, want one that contains %q", c.values, c.want)
			continue
		}
		// Helm's validator separates the fields in a path with "." or "/".
		if said := strings.ReplaceAll(err.Error(), ".", "/"); !strings.Contains(said, strings.ReplaceAll(c.want, ".", "/")) {
			t.Errorf("%s: the error does not contain %q: %v", c.values, c.want, err)
		}
	}
}

func TestValuesThatAreAccepted(t *testing.T) {
	for _, c := range []string{
		"image: {registry: 'localhost:5000', repository: team/kube-ipvs, tag: v1.2.3-rc.1}",
		"config: {ipvs: {scheduler: wrr, syncPeriod: 1m30s, minSyncPeriod: 0}, clusterCIDR: [10.0.0.0/8], nodePortAddresses: primary}",
		"config: {nodePortAddresses: [primary, localhost, 10.0.0.0/8]}",
		"config: {ipvs: {scheduler: null}, clientConnection: {qps: 7.5}}",
		"kubeProxyConfig: {anything: {goes: [here]}}",
		"kubeProxyConfig: {mode: ipvs, healthzBindAddress: '', metricsBindAddress: ''}",
		"kubeProxyConfig: {healthzBindAddress: 0.0.0.0}",
		"{config: {healthzBindAddress: '0.0.0.0:9999'}, healthPort: 9999}",
		"{config: {metricsBindAddress: '0.0.0.0:10249'}, metrics: {podMonitor: {enabled: true}}}",
		"apiServer: {host: 'fd00::1'}",
		"updateStrategy: {type: OnDelete, rollingUpdate: null}",
		"config:",
		"config: {logging: }",
		"kubeProxyConfig:",
		"kubeProxyConfig: {logging: }",
		"updateStrategy: {rollingUpdate: {maxUnavailable: 5}}",
		"seLinuxOptions: {type: container_t}",
		"tolerations: []",
		"nodeSelector: {'kube-ipvs.io/agent': 'true'}",
		"global: {imageRegistry: example.com, of: another chart}",
		"{healthPort: 9999, extraArgs: ['--healthz-bind-address=0.0.0.0:9999']}",
	} {
		if _, err := render(t, parse(t, c)); err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
}
