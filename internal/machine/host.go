package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipset"
)

// thisHost is the machine that the command runs on.
type thisHost struct{ ctx context.Context }

func (thisHost) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

func (thisHost) Names(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// SetNames lists no ipsets on a kernel without them.
func (h thisHost) SetNames(prefix string) (names []string, err error) {
	err = using(ipset.New, func(b *ipset.Backend) error {
		found, err := b.Summaries(h.ctx, prefix)
		names = slices.Collect(maps.Keys(found))
		return err
	})
	if errors.Is(err, kernel.ErrUnavailable) {
		return nil, nil
	}
	return names, err
}

func (thisHost) ClockSynchronized() (bool, error) {
	const timeError = 5 // TIME_ERROR in linux/timex.h
	state, err := unix.Adjtimex(&unix.Timex{})
	return state != timeError, err
}

// Get reads only the beginning of a response: metrics of a large node can be megabytes.
func (h thisHost) Get(url string) (int, string, error) { return get(h.ctx, url, 1024, 3*time.Second) }

// get returns the status and the first bytes of a response.
func get(ctx context.Context, url string, longest int64, patience time.Duration) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, longest))
	return response.StatusCode, string(text), err
}

// interfaceNames lists the interfaces of this process's network namespace.
func interfaceNames() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of this node: %w", err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names, nil
}
