// Package config loads defaults, a file and flags into one validated configuration. No other package validates a setting.
//
// Every setting is one row of a table (table.go). Flags, files, error messages, `config view`, reloading and
// docs/configuration.md are generated from that table.
//
// docs/decisions/0003-configuration.md explains why no single library is enough.
//
// May import: the standard library, pflag, a YAML parser that keeps line numbers, inet, model (names), kernel and compile (whose settings
// it fills in).
package config
