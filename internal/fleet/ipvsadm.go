package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

func readIPVSADM(_ Question, document []byte) (s said, err error) {
	var text string
	if err := json.Unmarshal(document, &text); err != nil {
		return s, err
	}
	if !strings.Contains(text, "Prot LocalAddress:Port Scheduler Flags") {
		return s, errors.New("it is not the output of ipvsadm -Ln")
	}
	var server []string // protocol, address, scheduler and flags
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 3 && slices.Contains([]string{"TCP", "UDP", "SCTP", "FWM"}, fields[0]):
			server = []string{fields[0], fields[1], strings.Join(fields[2:], " ")}
			s.facts = append(s.facts, fact{subject: []string{server[0], server[1], ""}, says: []string{server[2], "", ""}, counts: []uint64{0, 0}})
		case len(fields) == 6 && fields[0] == "->" && server != nil:
			f := fact{subject: []string{server[0], server[1], fields[1]}, says: []string{server[2], fields[2], fields[3]}}
			for _, text := range fields[4:] {
				n, err := strconv.ParseUint(text, 10, 64)
				if err != nil {
					return s, fmt.Errorf("%q: %w", line, err)
				}
				f.counts = append(f.counts, n)
			}
			if last := &s.facts[len(s.facts)-1]; last.subject[2] == "" {
				*last = f // the first destination replaces the entry for a server without destinations
			} else {
				s.facts = append(s.facts, f)
			}
		}
	}
	return s, nil
}
