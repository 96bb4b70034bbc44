package explain

import (
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// nftChain walks the rules of an nftables chain, as chain does for iptables.
func (w *walk) nftChain(p *packet, at kernel.NFTName, f flow, depth int) end {
	if depth > maxDepth {
		return continues
	}
	for _, rule := range w.k.NFTables.Rules[at] {
		run := nftRun{walk: w, p: p, at: at, flow: f, depth: depth, rule: rule}
		e := run.all()
		if e == returned && !run.flow.certain {
			f = flow{on: f.on.and(run.flow.on)}
			continue
		}
		if e != continues {
			return e
		}
	}
	return returned
}

type nftRun struct {
	*walk
	p         *packet
	at        kernel.NFTName
	flow      flow
	depth     int
	rule      kernel.NFTRule
	registers registers
	// matches are the conditions of the rule so far, in nft's syntax.
	matches []string
}

func (r *nftRun) all() end {
	for _, s := range r.rule.Statements {
		if e, goes := r.statement(s); !goes || e != continues {
			return e
		}
	}
	return continues
}

// statement executes one statement. goes is false if the packet does not match the rule.
func (r *nftRun) statement(s kernel.NFTStatement) (e end, goes bool) {
	switch s := s.(type) {
	case kernel.NFTLoad:
		b, has := r.p.field(r.k, s.Field, r.place)
		r.registers.store(s.To, b)
		return continues, has
	case kernel.NFTImmediate:
		r.registers.store(s.To, exactly(s.Data))
	case kernel.NFTBitwise:
		b := r.registers.read(s.From, s.Length)
		if s.Mask == nil && s.Xor == nil {
			b.known = make([]byte, len(b.data))
		}
		r.registers.store(s.To, b.transform(s.Mask, s.Xor))
	case kernel.NFTByteOrder:
		r.registers.store(s.To, r.registers.read(s.From, s.Length).reversed(s.Size))
	case kernel.NFTCompare:
		b := r.registers.read(s.From, len(s.Data))
		return continues, r.met(b.compare(s.Op, s.Data), b, operators[s.Op]+b.text(s.Data))
	case kernel.NFTRange:
		b := r.registers.read(s.From, len(s.Low))
		a, is := b.within(s.Low, s.High), ""
		if s.Not {
			a, is = a.not(), "!= "
		}
		return continues, r.met(a, b, is+b.text(s.Low)+"-"+b.text(s.High))
	case kernel.NFTLookup:
		return r.lookup(s)
	case kernel.NFTOpaque:
		return continues, r.met(maybe, bits{name: s.Text}, "")
	default:
		return r.effect(s), true
	}
	return continues, true
}

// effect executes a statement that has no result.
func (r *nftRun) effect(s kernel.NFTStatement) end {
	switch s := s.(type) {
	case kernel.NFTStore:
		r.set(s)
	case kernel.NFTVerdict:
		return r.verdict(s, r.flow)
	case kernel.NFTSourceNAT:
		return r.source(s)
	case kernel.NFTAction:
		return r.action(s.Name)
	}
	return continues
}

var operators = map[uint32]string{
	kernel.NFTNotEqual: "!= ", kernel.NFTLess: "< ", kernel.NFTLessEqual: "<= ", kernel.NFTGreater: "> ", kernel.NFTGreaterEqual: ">= ",
}

// met adds a condition to the rule, and returns false if the packet does not meet the condition.
func (r *nftRun) met(a matchResult, b bits, value string) bool {
	says := strings.TrimSpace(b.name + " " + value)
	r.matches = append(r.matches, says)
	if a == maybe {
		r.flow = r.flow.only(maybe, condition{says, !b.client})
	}
	return a != no
}

func (r *nftRun) lookup(s kernel.NFTLookup) (end, bool) {
	set, there := r.k.NFTables.Sets[r.at.In(s.Set)]
	length := 0
	for _, n := range set.Fields {
		length = (length+registerSize-1)/registerSize*registerSize + n
	}
	b := r.registers.read(s.From, length)
	name := "@" + s.Set
	if strings.HasPrefix(s.Set, "__") { // an anonymous set
		name = setText(set, b.name)
	}
	found, uncertain := r.search(set, b)
	a := resultOf(found != nil)
	if len(uncertain) > 0 && found == nil || !there || set.Unread != "" {
		a = maybe
	}
	if !s.Map {
		if s.Not {
			a, name = a.not(), "!= "+name
		}
		return continues, r.met(a, b, name)
	}
	if s.To >= 0 {
		if a == yes {
			r.registers.store(s.To, exactly(found.Data))
			return continues, true
		}
		r.registers.store(s.To, bits{data: make([]byte, nameLength), known: make([]byte, nameLength), name: "the value of map " + s.Set, client: b.client})
		return continues, r.met(a, b, name)
	}
	r.matches = append(r.matches, b.name+" vmap "+name)
	return r.verdictOf(a, b, name, found, uncertain, there && set.Unread == "")
}

// search returns the element that matches the key, and the elements that may match it.
func (r *nftRun) search(set kernel.NFTSet, b bits) (found *kernel.NFTElement, uncertain []kernel.NFTElement) {
	var rest *kernel.NFTElement
	for i, e := range set.Elements {
		if e.Key == nil {
			rest = &set.Elements[i]
			continue
		}
		switch a := b.in(e, set.Fields); {
		case a == yes && e.Opaque == "":
			return &set.Elements[i], nil
		case a != no:
			uncertain = append(uncertain, e)
		}
	}
	if len(uncertain) > 0 && rest != nil {
		return nil, append(uncertain, *rest)
	}
	return rest, uncertain
}

func (r *nftRun) verdictOf(a matchResult, b bits, name string, found *kernel.NFTElement, uncertain []kernel.NFTElement, read bool) (end, bool) {
	switch {
	case !read:
		return r.other(r.shown(), r.flow, "map "+name+", which explain did not read"), true
	case a == no:
		return continues, false
	case found != nil:
		return r.verdict(found.Verdict, r.flow), true
	}
	before, leaves := r.flow, false
	for _, e := range uncertain {
		on := before.only(maybe, condition{b.name + " " + name, !b.client || e.Opaque != ""})
		if r.verdict(e.Verdict, on) == returned {
			r.flow, leaves = on, true
		}
	}
	if leaves {
		return returned, true
	}
	return continues, true
}

func (r *nftRun) shown() shown {
	return shown{text: r.rule.Show(r.at), why: strings.Join(r.matches, " ")}
}

func (r *nftRun) verdict(v kernel.NFTVerdict, f flow) end {
	switch v.Code {
	case kernel.NFTAccept:
		return r.accept(r.shown(), f, "accepted; the remaining rules here are skipped")
	case kernel.NFTDrop:
		return r.stop(r.shown(), f, "dropped without a reply to the client")
	case kernel.NFTJump:
		return called(r.nftChain(r.p, r.at.In(v.Chain), f, r.depth+1))
	case kernel.NFTGoto:
		return r.nftChain(r.p, r.at.In(v.Chain), f, r.depth+1)
	case kernel.NFTReturn:
		return returned
	case kernel.NFTContinue, kernel.NFTBreak:
		return continues
	}
	return r.other(r.shown(), f, "the decision of the program that reads the queue")
}

func (r *nftRun) action(name string) end {
	switch name {
	case "reject":
		return r.stop(r.shown(), r.flow, "rejected with an immediate error to the client")
	case "dnat", "redir", "tproxy":
		return r.redirect(r.shown(), r.flow)
	case "notrack":
		r.notrack(r.p, r.shown(), r.flow)
	}
	if harmless[name] || name == "flow_offload" && r.k.Mode.NFTablesBalances() { // a flow table skips IPVS
		return continues
	}
	return r.other(r.shown(), r.flow, "what the statement "+name+" does")
}

// setText lists the first elements of an anonymous set.
func setText(set kernel.NFTSet, name string) string {
	const few = 4
	var all []string
	for i, e := range set.Elements {
		if i == few {
			all = append(all, "...")
			break
		}
		switch {
		case e.Key == nil:
			all = append(all, "*")
		case string(e.Key) == string(e.End):
			all = append(all, text(name, e.Key))
		default:
			all = append(all, text(name, e.Key)+"-"+text(name, e.End))
		}
	}
	return fmt.Sprintf("{ %s }", strings.Join(all, ", "))
}
