package compile

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// TestServicesPage: docs/services.md names the bounds of a Service, and the ports that the node needs.
func TestServicesPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/services.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	size := func(scheduler string) int { return model.SchedulerNamed(scheduler).TableKiB }
	for _, want := range []string{
		"| ports | " + withCommas(defaultBounds.ports) + " |",
		"| endpoints of all ports together, in each family | " + withCommas(defaultBounds.endpoints) + " |",
		"(addresses times ports times ranges) | " + withCommas(defaultBounds.external) + " |",
		"(addresses times the endpoints of all ports) | " + withCommas(defaultBounds.destinations) + " |",
		fmt.Sprintf("%d KiB for each virtual server with mh, %d KiB with lblc and lblcr, %d KiB with sh and dh", size("mh"), size("lblc"), size("sh")),
		fmt.Sprintf("| %d MiB on each node, enough for %s virtual servers with mh |", maxTableKiB>>10, withCommas(maxTableKiB/size("mh"))),
		fmt.Sprintf("Each set has room for %s entries", withCommas(maxElem)),
		fmt.Sprintf("get fewer, but at least %d,", minShare),
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not contain %q", want)
		}
	}
	_, ports, _ := strings.Cut(page, "the agent never serves TCP ")
	ports, _, _ = strings.Cut(ports, ".")
	named := map[string]bool{}
	for _, port := range regexp.MustCompile(`\d+`).FindAllString(ports, -1) {
		named[port] = true
		if n, _ := strconv.ParseUint(port, 10, 16); nodePortUses[uint16(n)] == "" {
			t.Errorf("the page lists port %s as needed by the node, but the agent serves it", port)
		}
	}
	for port, use := range nodePortUses {
		if !named[fmt.Sprint(port)] {
			t.Errorf("the page does not name port %d (%s)", port, use)
		}
	}
}

// TestSchedulersPage: docs/schedulers.md describes every scheduler, and names the schedulers that the agent advises against.
func TestSchedulersPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/schedulers.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	var unwise []string
	for _, name := range model.Schedulers {
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(page) {
			t.Errorf("the page does not describe %s", name)
		}
		if model.SchedulerNamed(name).Advice != "" {
			unwise = append(unwise, name)
		}
	}
	slices.Sort(unwise)
	for _, want := range []string{
		"- **" + strings.Join(unwise, ", ") + "** are made for transparent caches",
		"more than " + withCommas(defaultBounds.endpoints) + " steps",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not contain %q", want)
		}
	}
}

func TestCoexistencePage(t *testing.T) {
	text, err := os.ReadFile("../../docs/coexistence.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, chain := range Base(Config{Host: Host{Families: inet.Families, Mode: kernel.IPVSWithIPTables}}).Rulesets[0].Chains {
		if !strings.Contains(string(text), "`"+chain.Chain+"`") {
			t.Errorf("the page does not name the chain %s", chain)
		}
	}
}

func TestArchitecturePage(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range allSets {
		if !regexp.MustCompile("(?m)^\\| .*`" + set.name + "`.* \\|").MatchString(string(text)) {
			t.Errorf("the page does not explain the set %s", set.name)
		}
	}
}

// withCommas writes 65536 as 65,536.
func withCommas(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", withCommas(n/1000), n%1000)
}
