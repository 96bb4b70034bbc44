package localports

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/rundir"
)

// Record returns the path of the record for this process's network namespace. The sysctl is also per network namespace.
func Record() (string, error) { return rundir.OfThisNetwork("reserved-ports-", "") }

func (h Host) recorded() (record string, ports kernel.Ports, err error) {
	if record, err = h.Record(); err != nil {
		return "", nil, fmt.Errorf("find the record of reserved ports: %w", err)
	}
	text, err := os.ReadFile(record)
	if errors.Is(err, fs.ErrNotExist) {
		return record, nil, nil
	}
	if err != nil {
		return "", nil, fmt.Errorf("read the record of reserved ports: %w", err)
	}
	if ports, err = kernel.ParsePorts(strings.TrimSpace(string(text))); err != nil {
		return "", nil, fmt.Errorf("the record of reserved ports %s: %w; remove the file", record, err)
	}
	return record, ports, nil
}

// write replaces the record in one step. An empty record is no file.
func write(record string, ports kernel.Ports) error {
	var err error
	if len(ports) == 0 {
		if err = os.Remove(record); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	} else if err = os.WriteFile(record+".new", []byte(ports.String()+"\n"), 0o600); err == nil {
		err = os.Rename(record+".new", record)
	}
	if err != nil {
		return fmt.Errorf("write the record of reserved ports: %w", err)
	}
	return nil
}
