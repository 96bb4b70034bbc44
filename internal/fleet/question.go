package fleet

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// Question is a command to run on the nodes.
type Question struct {
	Command string
	// Namespace limits the answer; empty for all namespaces. Name is a Service in it; empty for all Services. For
	// explain, Name may include a port, or be an address with a port.
	Namespace, Name string
	Extra           []string
}

type command struct {
	// Column headings.
	subject, says, sums []string
	// sameEverywhere is true if all nodes should agree on a subject.
	sameEverywhere bool
	// verdict is true if the answer is a verdict on the whole cluster.
	verdict bool
	// verdictInStatus is true if the exit status says what the answer says. Otherwise, it is 0 unless the command has failed.
	verdictInStatus bool
	// changing is true if the last cell of each answer changes all the time.
	changing bool
	// busiest is true if the rows are sorted by their first sum, the largest first. All sums of such a command change all the time.
	busiest bool
	// takesName is true if the command accepts a Service as an argument.
	takesName, needsName bool
	names                func(Row) []string
	read                 func(q Question, document []byte) (said, error)
}

var commands = map[string]command{
	"services": {
		subject: []string{"NAMESPACE", "NAME", "PORT", "KIND", "ADDRESS"}, says: []string{"SCHEDULER", "ENDPOINTS", "STATE"}, sums: []string{"ACTIVE", "INACTIVE"},
		sameEverywhere: true, takesName: true, names: serviceOf, read: readServices,
	},
	"conns": {
		subject: []string{"NAMESPACE", "NAME", "PROTOCOL", "CLIENT", "VIRTUAL", "ENDPOINT"}, says: []string{"POD", "STATE", "EXPIRES"},
		takesName: true, changing: true, names: serviceOf, read: readConnections,
	},
	"top": {
		subject: []string{"NAMESPACE", "NAME", "PORT", "KIND", "ADDRESS"}, sums: []string{"CONN/S", "PKT/S", "IN/S", "OUT/S", "ACTIVE", "INACTIVE", "DRAINING"},
		takesName: true, busiest: true, names: serviceOf, read: readTop,
	},
	"status": {subject: []string{"AGENT"}, says: []string{"VERSION"}, verdict: true, verdictInStatus: true, names: unwellNodes, read: readStatus},
	"doctor": {subject: []string{"VERDICT"}, sums: []string{"PATHS", "CONNECTED"}, verdict: true, verdictInStatus: true, names: unwellNodes, read: readDoctor},
	"explain": {
		subject: []string{"SERVICE", "KIND", "ADDRESS"}, says: []string{"VERDICT", "WHY"},
		sameEverywhere: true, verdict: true, verdictInStatus: true, takesName: true, needsName: true, names: firstCell, read: readExplanations,
	},
	"preflight": {subject: []string{"VERDICT"}, verdict: true, verdictInStatus: true, names: unwellNodes, read: readPreflight},
	"plan":      {subject: []string{"PHASE", "OPERATION"}, verdict: true, verdictInStatus: true, names: unwellNodes, read: readPlan},
	ipvsadm: {
		subject: []string{"PROTOCOL", "ADDRESS", "DESTINATION"}, says: []string{"SCHEDULER", "FORWARD", "WEIGHT"}, sums: []string{"ACTIVE", "INACTIVE"},
		names: frontendOf, read: readIPVSADM,
	},
	"cleanup": {subject: []string{"OPERATION"}, says: []string{"RESULT"}, verdict: true, names: unwellNodes, read: readCleanup},
	"history": {subject: []string{"TIME", "KIND", "CAUSE"}, says: []string{"SERVICES", "CHANGES", "RESULT"}, names: unwellNodes, read: readHistory},
	"version": {subject: []string{"VERSION", "COMMIT", "GO", "PLATFORM"}, names: unwellNodes, read: readVersion},
}

func serviceOf(r Row) []string {
	if r.Subject[1] == "" { // no agent responded
		return nil
	}
	return []string{r.Subject[0] + "/" + r.Subject[1]}
}

func firstCell(r Row) []string { return r.Subject[:1] }

// frontendOf formats the frontend of a row as an argument for explain.
func frontendOf(r Row) []string {
	if r.Subject[0] == "FWM" {
		return nil
	}
	return []string{r.Subject[1] + "/" + strings.ToLower(r.Subject[0])}
}

func unwellNodes(r Row) []string {
	if r.Subject[0] == finding.Well {
		return nil
	}
	return r.Nodes
}

// serviceName matches [NAMESPACE/]NAME[:PORT]. It never matches a flag.
var serviceName = regexp.MustCompile(`^([a-z0-9][a-z0-9.-]*/)?[a-z0-9][a-z0-9.-]*(:[a-z0-9-]+)?$`)

// Line returns the command line to run on the nodes.
func (q Question) Line() ([]string, error) {
	c, known := commands[q.Command]
	switch {
	case !known:
		return nil, fmt.Errorf("unknown command %q", q.Command)
	case q.Name == "" && c.needsName:
		return nil, errors.New("name a Service, or an address such as 10.96.0.10:53/udp")
	case q.Name != "" && !c.takesName:
		return nil, fmt.Errorf("%q: %s takes no Service", q.Name, q.Command)
	}
	if q.Command == ipvsadm {
		return []string{"kube-ipvs", q.Command, "-Ln"}, nil
	}
	line := append([]string{"kube-ipvs", q.Command, "--output=json"}, q.Extra...)
	if q.Name == "" {
		return line, nil
	}
	if q.Command == "explain" && isAddress(q.Name) {
		return append(line, "--", q.Name), nil
	}
	if !serviceName.MatchString(q.Name) || q.Command != "explain" && strings.Contains(q.Name, ":") {
		return nil, fmt.Errorf("%q is not a Service name", q.Name)
	}
	if strings.Contains(q.Name, "/") {
		return append(line, "--", q.Name), nil
	}
	if q.Namespace == "" {
		return nil, fmt.Errorf("%q: a name needs a namespace; use -n NAMESPACE instead of -A", q.Name)
	}
	return append(line, "--", q.Namespace+"/"+q.Name), nil
}

// ipvsadm is the only command without JSON output.
const ipvsadm = "ipvsadm"

// Text reports whether the answer is text, which becomes a JSON string in the document.
func (q Question) Text() bool { return q.Command == ipvsadm }

// Busiest reports whether the answer is a measurement that is sorted by size and differs each time.
func (q Question) Busiest() bool { return commands[q.Command].busiest }

// AsAgent reports whether the command needs the flags of the agent.
func (q Question) AsAgent() bool { return q.Command == "plan" || q.Command == "preflight" }

// isAddress reports whether explain's argument is an address with a port.
func isAddress(name string) bool {
	address, _, _ := strings.Cut(name, "/")
	_, err := netip.ParseAddrPort(address)
	return err == nil
}

// Service returns the namespace and name of the Service, or "" if the question names none.
func (q Question) Service() (namespace, name string) {
	if q.Name == "" || isAddress(q.Name) {
		return "", ""
	}
	name, _, _ = strings.Cut(q.Name, ":")
	if before, after, found := strings.Cut(name, "/"); found {
		return before, after
	}
	return q.Namespace, name
}

func (q Question) about(namespace string) bool {
	return q.Name != "" || q.Namespace == "" || q.Namespace == namespace
}

// MaxNodes is the number of nodes that are queried by default.
const MaxNodes = 20

// Choose selects the nodes to query. Nodes with an endpoint of the Service come first, because their answers depend on
// policies and hints. The others follow in alphabetical order.
func Choose(nodes []string, withEndpoint map[string]bool, all bool) (chosen []string, left int) {
	if all || len(nodes) <= MaxNodes {
		return nodes, 0
	}
	var others []string
	for _, n := range nodes {
		if withEndpoint[n] && len(chosen) < MaxNodes {
			chosen = append(chosen, n)
		} else {
			others = append(others, n)
		}
	}
	chosen = append(chosen, others[:MaxNodes-len(chosen)]...)
	return chosen, len(nodes) - len(chosen)
}
