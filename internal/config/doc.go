// Package config reads defaults, a file and flags into one validated configuration: nothing behind it checks again.
//
// Every setting is a row of one table (table.go) that names it in our file, on the command line and in kube-proxy's
// configuration. Flags, files, errors, `config view`, reloading and docs/configuration.md are all made from that table.
//
// May import: the standard library, pflag, a YAML parser that knows lines, and of ours inet, model (names), kernel and compile
// (what it configures).
package config
