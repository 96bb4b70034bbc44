package realcluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// load sends requests from an outside client to each node port, and from a pod to the Service's name.
type load struct {
	s      stage
	stop   context.CancelFunc
	all    sync.WaitGroup
	mutex  sync.Mutex
	served map[string]int
	lost   []string
}

// podLoad runs in the background, because kubectl exec ends when the kubelet restarts.
const podLoad = `rm -f /tmp/stop /tmp/load
(n=0; while [ ! -e /tmp/stop ]; do
	curl -sS -m 30 -o /dev/null http://web/hostname || echo lost at $(date +%T)
	n=$((n+1)); sleep 1
done; echo $n requests) >/tmp/load 2>&1 &`

func (s stage) startLoad() *load {
	s.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &load{s: s, stop: stop, served: map[string]int{}}
	for _, n := range s.Nodes {
		for _, address := range []string{n.IPv4, n.IPv6} {
			l.all.Go(func() { l.request(ctx, "http://"+net.JoinHostPort(address, "30080")+"/hostname") })
		}
	}
	s.inClient(podLoad)
	s.t.Cleanup(stop)
	s.eventually("all clients are served", func() error {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		if want := 2 * len(s.Nodes); len(l.served) < want {
			return fmt.Errorf("%d of %d", len(l.served), want)
		}
		l.lost = nil
		return nil
	})
	return l
}

func (l *load) request(ctx context.Context, url string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	for ctx.Err() == nil {
		err := get(client, url)
		l.mutex.Lock()
		if err == nil {
			l.served[url]++
		} else {
			l.lost = append(l.lost, fmt.Sprintf("%s %v", time.Now().Format(time.TimeOnly), err))
		}
		l.mutex.Unlock()
		time.Sleep(200 * time.Millisecond)
	}
}

func get(client http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	return nil
}

func (l *load) nothingLost(t *testing.T) {
	t.Helper()
	l.stop()
	l.all.Wait()
	said := l.s.inClient("touch /tmp/stop; while ! grep -q requests /tmp/load; do sleep 1; done; cat /tmp/load")
	for url, n := range l.served {
		t.Logf("%s: %d requests", url, n)
	}
	t.Logf("pod: %s", said)
	if len(l.lost) > 0 || strings.Contains(said, "lost") {
		t.Errorf("lost: %s\n%s", strings.Join(l.lost, "\n"), said)
	}
}
