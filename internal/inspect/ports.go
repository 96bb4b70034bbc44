package inspect

import (
	"fmt"
	"io"
	"strconv"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// WritePorts writes the ports of the data plane in user space.
func WritePorts(w io.Writer, ports []view.ForwardedPort, form Table) error {
	rows := make([][]string, len(ports))
	for i, p := range ports {
		state := string(p.State)
		if p.ProxyProtocol > 0 {
			state += fmt.Sprintf(" (PROXY protocol v%d)", p.ProxyProtocol)
		}
		if p.Reason != "" {
			state += ": " + p.Reason
		}
		rows[i] = []string{p.Namespace, p.Name, p.Port, p.Address.String() + "/" + p.Protocol, p.Serves, strconv.Itoa(p.Endpoints), state}
	}
	return WriteTable(w, []string{"NAMESPACE", "NAME", "PORT", "LISTENS AT", "FOR", "ENDPOINTS", "STATE"}, rows, form)
}
