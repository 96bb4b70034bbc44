// Package explain traces one packet through a node's kernel and names the deciding kernel object at each step. If the
// packet does not arrive, explain reports the reason and the missing objects.
//
// The package is pure: it derives the steps from the kernel state, the agent's view (if any) and the question. It
// evaluates the rules in the kernel rather than the agent's wanted rules, so the steps include the effects of other
// programs.
//
// Most of the code evaluates rules (match.go, walk.go) to find the foreign rule that stops a packet. The rules are
// typed: kernel/iptables parses other programs' rules.
//
// May import: finding, inet, kernel, model and view.
package explain
