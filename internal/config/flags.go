package config

import (
	"strings"

	"github.com/spf13/pflag"
)

// Flags are settings as they were given on a command line, and the file that is to be read before them.
type Flags struct {
	File  string
	given map[string]given // by the flag's name
}

// AddCompile registers the flags that decide the wanted state, for commands that need no agent.
func (f *Flags) AddCompile(fs *pflag.FlagSet) {
	fs.StringVar(&f.File, "config", "", "file with settings, ours or a KubeProxyConfiguration; flags win over it")
	for _, row := range table {
		if row.planning {
			f.add(fs, row.flag, "", row.kind(), row.usual, row.meaning)
		}
	}
}

// AddRun registers the flags of a running agent. Those of kube-proxy's that do nothing here, or repeat another, are hidden.
func (f *Flags) AddRun(fs *pflag.FlagSet) {
	f.AddCompile(fs)
	for _, row := range table {
		if !row.planning {
			f.add(fs, row.flag, "", row.kind(), row.usual, row.meaning)
		}
	}
	for _, t := range translations {
		f.add(fs, t.flag, t.short, t.kind, "", "kube-proxy's name for "+t.ours).Hidden = true
	}
	for _, i := range inapplicables {
		kind := kindText
		if i.truth {
			kind = kindTruth
		}
		if i.flag != "" {
			f.add(fs, i.flag, "", kind, "", "does nothing here: "+i.why).Hidden = true
		}
	}
}

func (f *Flags) add(fs *pflag.FlagSet, name, short string, k kind, usual, meaning string) *pflag.Flag {
	flag := fs.VarPF(&flagValue{flags: f, name: name, kind: k, usual: usual}, name, short, meaning)
	if k == kindTruth {
		flag.NoOptDefVal = "true"
	}
	return flag
}

// flagValue keeps the words of a flag until everything is parsed together, so that all errors are told at once.
type flagValue struct {
	flags *Flags
	name  string
	kind  kind
	usual string
}

func (v *flagValue) Set(text string) error {
	if v.flags.given == nil {
		v.flags.given = map[string]given{}
	}
	g := given{flag: v.name, words: []string{text}}
	if v.kind.many() {
		g.words = append(v.flags.given[v.name].words, splitList(text)...)
	}
	v.flags.given[v.name] = g
	return nil
}

func (v *flagValue) String() string {
	if v.flags == nil { // pflag asks a zero value for its text
		return ""
	}
	if g, ok := v.flags.given[v.name]; ok {
		return strings.Join(g.words, ",")
	}
	return v.usual
}

// Type is what help shows behind the flag's name.
func (v *flagValue) Type() string {
	switch v.kind {
	case kindTruth:
		return "bool"
	case kindNumber:
		return "int"
	case kindDuration:
		return "duration"
	case kindList, kindPairs:
		return "strings"
	}
	return "string"
}
