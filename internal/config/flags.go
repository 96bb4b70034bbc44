package config

import (
	"strings"

	"github.com/spf13/pflag"
)

// Flags contains the settings on a command line, and the name of the file that they override.
type Flags struct {
	File   string
	inputs map[string]input // by flag
}

// AddCompile registers the flags that affect the wanted state, for commands that do not run an agent.
func (f *Flags) AddCompile(fs *pflag.FlagSet) {
	fs.StringVar(&f.File, "config", "", "configuration file of kube-ipvs, or a KubeProxyConfiguration; flags override it")
	f.addSettings(fs, true)
}

// AddRun registers all flags of an agent. Flags of kube-proxy that have no effect or repeat another flag are hidden.
func (f *Flags) AddRun(fs *pflag.FlagSet) {
	f.AddCompile(fs)
	f.addSettings(fs, false)
	for _, t := range translations {
		f.add(fs, t.flag, t.short, t.kind, "", "flag of kube-proxy for "+t.ours).Hidden = true
	}
	for _, i := range inapplicables {
		if i.flag != "" {
			f.add(fs, i.flag, "", i.kind(), "", "no effect: "+i.why).Hidden = true
		}
	}
}

// AddAgent registers all flags of an agent, so that a command accepts an agent's command line. It hides flags that
// do not affect the wanted state.
func (f *Flags) AddAgent(fs *pflag.FlagSet) {
	f.AddCompile(fs)
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.AddRun(all)
	all.VisitAll(func(flag *pflag.Flag) {
		if fs.Lookup(flag.Name) == nil {
			flag.Hidden = true
			fs.AddFlag(flag)
		}
	})
}

func (f *Flags) addSettings(fs *pflag.FlagSet, planning bool) {
	for _, row := range table {
		if row.planning == planning {
			f.add(fs, row.flag, "", row.kind(), row.byDefault, row.meaning)
		}
	}
}

func (f *Flags) add(fs *pflag.FlagSet, name, short string, k kind, byDefault, meaning string) *pflag.Flag {
	flag := fs.VarPF(&flagValue{flags: f, name: name, kind: k, byDefault: byDefault}, name, short, meaning)
	if k == kindBool || k == kindSwitch {
		flag.NoOptDefVal = "true"
	}
	return flag
}

// flagValue stores the words of a flag until Load parses them, so that Load can report all errors together.
type flagValue struct {
	flags     *Flags
	name      string
	kind      kind
	byDefault string
}

func (v *flagValue) Set(text string) error {
	if v.flags.inputs == nil {
		v.flags.inputs = map[string]input{}
	}
	in := input{place: place{origin: "--" + v.name}, words: []string{text}}
	if v.kind.isList() {
		in.words = append(v.flags.inputs[v.name].words, splitList(text)...)
	}
	v.flags.inputs[v.name] = in
	return nil
}

func (v *flagValue) String() string {
	if v.flags == nil { // pflag calls String on a zero value
		return ""
	}
	if in, ok := v.flags.inputs[v.name]; ok {
		return strings.Join(in.words, ",")
	}
	return v.byDefault
}

func (v *flagValue) Type() string {
	if v.kind == kindPairs {
		return string(kindList)
	}
	return string(v.kind)
}
