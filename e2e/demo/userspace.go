package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// local demonstrates the data plane in user space. The pods are sockets of this process at 127.0.1.1, 127.0.1.2 and so
// on, which Linux delivers locally without configuration.
type local struct {
	agent, dir string
	port       int // of all pods
	pods       []*localPod
	process    *exec.Cmd
	rows       chan string // the rows that the agent prints
	log        lockedBuffer
	service    string // where the agent serves the Service web
	idle       net.Conn
}

type localPod struct {
	name, ip string
	socket   net.Listener
	notReady bool
}

func (d *local) steps() []step {
	return []step{
		{"Three pods: sockets at 127.0.1.1 to 127.0.1.3", d.setUp},
		{"Manifests of a Service whose endpoints are the three pods", d.writeFirst},
		{"The agent, as user " + fmt.Sprint(os.Getuid()) + ": kube-ipvs run --manifests DIR --data-plane userspace", d.startAgent},
		{"30 requests to the Service", func() error { return d.request(30) }},
		{"Scale up: two more pods", d.scaleUp},
		{"A pod dies, but is still an endpoint: the agent tries another one", d.die},
		{"The pod is no longer ready", d.notReady},
		{"The agent stops without waiting ten seconds for an idle connection, and the port is closed", d.stopAgent},
	}
}

func (d *local) setUp() error {
	first, err := net.Listen("tcp", "127.0.1.1:0")
	if err != nil {
		return err
	}
	d.port = first.Addr().(*net.TCPAddr).Port
	d.addPod(first)
	return errors.Join(d.listen(), d.listen())
}

// listen starts another pod, at the next address.
func (d *local) listen() error {
	socket, err := net.Listen("tcp", fmt.Sprintf("127.0.1.%d:%d", len(d.pods)+1, d.port))
	if err == nil {
		d.addPod(socket)
	}
	return err
}

// addPod starts a pod that answers each connection with its name, once it has received a line.
func (d *local) addPod(socket net.Listener) {
	pod := &localPod{name: fmt.Sprintf("web-%d", len(d.pods)+1), ip: socket.Addr().(*net.TCPAddr).IP.String(), socket: socket}
	d.pods = append(d.pods, pod)
	fmt.Printf("    %-6s %s:%d\n", pod.name, pod.ip, d.port)
	go func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			go func() {
				if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
					_, _ = fmt.Fprintln(c, pod.name)
				}
				_ = c.Close()
			}()
		}
	}()
}

func (d *local) writeFirst() (err error) {
	if d.dir, err = os.MkdirTemp("", "kube-ipvs-demo-"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(d.dir, "service.yaml"), []byte(serviceManifest), 0o644); err != nil {
		return err
	}
	show(serviceManifest)
	return d.writeEndpoints()
}

func (d *local) writeEndpoints() error {
	var endpoints strings.Builder
	for i, pod := range d.pods {
		fmt.Fprintf(&endpoints, "- {addresses: [%s], targetRef: {kind: Pod, name: web-%d}, conditions: {ready: %t}}\n", pod.ip, i+1, !pod.notReady)
	}
	return replaceEndpoints(d.dir, d.port, endpoints.String())
}

func (d *local) startAgent() error {
	d.process = exec.Command(d.agent, "run", "--manifests", d.dir, "--data-plane", "userspace")
	d.process.Stderr = &d.log
	out, err := d.process.StdoutPipe()
	if err != nil {
		return err
	}
	d.rows = make(chan string, 100)
	if err := d.process.Start(); err != nil {
		return err
	}
	go func() {
		defer close(d.rows)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			d.rows <- lines.Text()
		}
	}()
	return d.awaitRow(3)
}

var listensAt = regexp.MustCompile(`^default +web +http +(127\.0\.0\.1:\d+)/tcp .* (\d+) +Listening$`)

// awaitRow shows what the agent prints, until it serves the Service with this number of endpoints.
func (d *local) awaitRow(endpoints int) error {
	timeout := time.After(patience)
	for {
		select {
		case row, ok := <-d.rows:
			if !ok {
				return errors.New("the agent has ended")
			}
			show(row + "\n")
			if m := listensAt.FindStringSubmatch(row); m != nil && m[2] == fmt.Sprint(endpoints) {
				d.service = m[1]
				return nil
			}
		case <-timeout:
			return fmt.Errorf("the agent does not serve %d endpoints", endpoints)
		}
	}
}

func (d *local) ask() (string, error) {
	c, err := net.DialTimeout("tcp", d.service, patience)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(answer), err
}

// request sends requests one after another, and checks that the living pods receive equal numbers of them. A dead
// pod's turns go to the others.
func (d *local) request(n int) error {
	counts := map[string]int{}
	for range n {
		name, err := d.ask()
		if err != nil {
			return err
		}
		counts[name]++
	}
	fmt.Printf("    %d requests to %s\n", n, d.service)
	dead := slices.ContainsFunc(d.pods, func(p *localPod) bool { return p.socket == nil && !p.notReady })
	alive := 0
	for _, pod := range d.pods {
		if pod.socket != nil {
			alive++
		}
	}
	for _, pod := range d.pods {
		fmt.Printf("    %-6s answered %2d  %s\n", pod.name, counts[pod.name], strings.Repeat("#", counts[pod.name]))
		if pod.socket != nil && counts[pod.name] != n/alive && !dead {
			return fmt.Errorf("round robin gave %s %d of %d requests, want %d", pod.name, counts[pod.name], n, n/alive)
		}
	}
	return nil
}

func (d *local) scaleUp() error {
	if err := errors.Join(d.listen(), d.listen()); err != nil {
		return err
	}
	return d.change(5)
}

func (d *local) change(endpoints int) error {
	if err := d.writeEndpoints(); err != nil {
		return err
	}
	if err := d.awaitRow(endpoints); err != nil {
		return err
	}
	return d.request(5 * endpoints)
}

func (d *local) die() error {
	pod := d.pods[1]
	_ = pod.socket.Close()
	pod.socket = nil
	fmt.Printf("    %s stops answering\n", pod.name)
	return d.request(20)
}

func (d *local) notReady() error {
	d.pods[1].notReady = true
	return d.change(4)
}

func (d *local) stopAgent() (err error) {
	if d.idle, err = net.DialTimeout("tcp", d.service, patience); err != nil {
		return err
	}
	if _, err := d.ask(); err != nil { // afterwards, the agent has accepted the idle connection
		return err
	}
	started := time.Now()
	if err := d.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := d.process.Wait(); err != nil {
		return err
	}
	d.process = nil
	fmt.Printf("    the agent stopped within %s\n", time.Since(started).Round(100*time.Millisecond))
	if _, err := d.ask(); !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("a request after the end of the agent: %w", err)
	}
	fmt.Println("    the next request is refused")
	return nil
}

func (d *local) logs() {
	fmt.Fprintf(os.Stderr, "--- log of the agent\n%s", d.log.String())
}

func (d *local) close() {
	if d.process != nil {
		_ = d.process.Process.Kill()
		_ = d.process.Wait()
	}
	for _, pod := range d.pods {
		if pod.socket != nil {
			_ = pod.socket.Close()
		}
	}
	if d.idle != nil {
		_ = d.idle.Close()
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir)
	}
}

type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

var _ io.Writer = &lockedBuffer{}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}
