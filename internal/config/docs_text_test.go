package config

const docsHead = `# Configuration

<!-- Written by "go test ./internal/config -update"; change the text there, and the tables in internal/config. -->

Settings come from defaults, a file and flags; the later win. Without a file and flags the agent does what kube-proxy does by
default, but for strict ARP, which is on.

<!-- before: printf 'apiVersion: config.kube-ipvs.io/v1alpha1\nkind: Configuration\nipvs:\n  scheduler: wlc\n' > kube-ipvs.yaml -->
<!-- before: printf 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\nclusterCIDR: 10.244.0.0/16\nipvs: {scheduler: wlc, strictARP: false}\n' > kube-proxy.yaml -->
` + "```" + `console
$ kube-ipvs config validate --config kube-ipvs.yaml
the configuration is valid
$ kube-ipvs config view --config kube-ipvs.yaml --drain-timeout 5m
...
ipvs:
  scheduler: wlc # kube-ipvs.yaml:4
  syncPeriod: 30s # default
  minSyncPeriod: 0s # default
  drainTimeout: 5m0s # --drain-timeout
...
$ kube-ipvs config convert kube-proxy.yaml
apiVersion: config.kube-ipvs.io/v1alpha1
kind: Configuration
ipvs:
  scheduler: wlc
  strictARP: false
clusterCIDR: [10.244.0.0/16]
` + "```" + `

"validate" names everything that is wrong, with exit status 1. "view" shows every setting in force and where it comes from. "convert" puts
a KubeProxyConfiguration into our format, with warnings on stderr. "run" takes the same file and flags.

All values are checked before the kernel is touched, and all errors are told at once, each with the file and line or the flag,
the value, and what would be valid.

## Settings

"Name" is the field in our file (` + "`a.b`" + ` is ` + "`b`" + ` in ` + "`a`" + `). "kube-proxy" is the field of a KubeProxyConfiguration; kube-proxy's flags are
called the same here. "Applies" says when a change in the file takes effect: at once, or after a restart.

| name | flag | kube-proxy | default | applies | meaning |
|---|---|---|---|---|---|
`

const docsFiles = `
A list is written as a list, on the command line with commas; a flag that is repeated adds to its list. Durations are written as
` + "`30s`, `15m` or `24h`" + `. Timeouts that the kernel keeps are whole seconds.

### Sysctls of connection tracking

The limit of tracked connections (` + "`nf_conntrack_max`" + `) is ` + "`conntrack.maxPerCore`" + ` times the machine's CPUs, at most 1048576, and
at least ` + "`conntrack.min`" + `; that may be lower than the kernel's own, as with kube-proxy. The size of the hash table is left alone: on
Linux before 5.15 and with a limit above 262144, set ` + "`options nf_conntrack hashsize=262144`" + ` in /etc/modprobe.d. (kube-proxy raises
it to a quarter of the limit; it also cuts ` + "`conntrack.min`" + ` to 1048576 on machines with many CPUs.) A timeout of 0 leaves the
kernel's own.

## Files

### Our own format

<!-- not run: a test of this package reads it -->
` + "```" + `yaml
apiVersion: config.kube-ipvs.io/v1alpha1
kind: Configuration
ipvs:
  scheduler: wlc
  drainTimeout: 5m
clusterCIDR: [10.244.0.0/16, "fd00:244::/56"]
` + "```" + `

YAML or JSON. A field that is not known, or given twice, is an error.

### KubeProxyConfiguration

A file of kube-proxy (` + "`kubeproxy.config.k8s.io/v1alpha1`" + `) is accepted as it is: alone, among other documents (which are named in a
warning), or inside a ConfigMap, as ` + "`kubectl -n kube-system get configmap kube-proxy -o yaml`" + ` prints it. As with kube-proxy,
an empty text, a zero duration and null mean the default, and a field that is not known is a warning. Other than with kube-proxy,
flags win over the file.

` + "`ipvs.strictARP: false`" + `, which kubeadm writes into every file, is obeyed.

These fields and flags say in other words what a setting above says:

| field | flag | here |
|---|---|---|
`

const docsWithout = `
` + "`mode`" + ` must be ` + "`ipvs`" + `. An empty one, which means iptables to kube-proxy, is a warning; another mode is an error. A ` + "`bindAddress`" + ` of
IPv6 moves the defaults of the health and metrics servers to ` + "`[::]:10256` and `[::1]:10249`" + `; an address without a port gets these ports.

Some flags of ` + "`run`" + ` ask for something else than running, as with kube-proxy: ` + "`--cleanup`" + ` does what ` + "`kube-ipvs cleanup`" + ` does,
` + "`--init-only`" + ` sets the sysctls, for which the agent would otherwise need more than NET_ADMIN and NET_RAW, and
` + "`--write-config-to`" + ` writes the configuration that file and flags give, in our format, to a file. ` + "`--version`" + ` prints the version.

These do nothing here. A value that is neither zero nor kube-proxy's default is named in a warning:

| field | flag | why |
|---|---|---|
`

const docsTail = `
## Reloading

The agent reads the file again every few seconds. When it has changed, and two readings agree, the new settings are checked like
at the start. If anything is wrong, the agent goes on with the old settings; the log and ` + "`kube-ipvs status`" + ` say what it is, and the
metric ` + "`kube_ipvs_configuration_refused`" + ` is 1. Otherwise settings that apply "at once" are in force from then on; for those that
need a restart the log names what waits. Flags win over the new file, too. Open connections stay. A sysctl or timeout that is no longer asked for keeps its last value.

Mounted ConfigMaps are noticed as soon as the kubelet has updated them, which takes it up to a minute or two.
`
