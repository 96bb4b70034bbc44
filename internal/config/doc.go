// Package config loads defaults, a file and flags into one validated configuration. No other package validates a setting.
//
// Every setting is one row of a table (table.go): its field in a file, its flag, kube-proxy's field, its default, its type, when a
// change takes effect, and its description. Flags, files, error messages, `config view`, reloading and docs/configuration.md are
// generated from that table.
//
// More than a quarter of the package consists of tables that list our settings and kube-proxy's fields and flags. The rest provides what no
// single library offers (docs/decisions/0003-configuration.md): it reports all mistakes together, each with file, line, field, value and
// remedy, records the origin of every value, and finds a KubeProxyConfiguration among other documents or in a ConfigMap.
//
// May import: the standard library, pflag, a YAML parser that keeps line numbers, inet, model (names), kernel and compile (whose settings
// it fills in).
package config
