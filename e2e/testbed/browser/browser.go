// Package browser drives a headless Chromium through a pipe (the Chrome DevTools Protocol).
package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// patience limits each command and each wait. No test depends on its exact value.
const patience = time.Minute

// Page is a browser tab.
type Page struct {
	t       testing.TB
	session string
	write   *os.File

	mu      sync.Mutex
	last    int
	waiting map[int]chan message
	errors  []string
}

// message is a command, its result, or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// RequireVariable names the variable that makes tests fail rather than skip if Chromium is not installed.
const RequireVariable = "KUBE_IPVS_E2E"

// Open starts a browser with an empty page. The browser stops when the test ends.
func Open(t testing.TB) *Page {
	t.Helper()
	program, err := exec.LookPath("chromium")
	switch {
	case err != nil && os.Getenv(RequireVariable) == "1":
		t.Fatal(err)
	case err != nil:
		t.Skip("needs chromium: " + err.Error())
	}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "about:blank")
	in, commands, err := os.Pipe() // the browser reads file descriptor 3 and writes to 4
	must(t, err)
	results, out, err := os.Pipe()
	must(t, err)
	cmd.ExtraFiles = []*os.File{in, out}
	must(t, cmd.Start())
	must(t, errors.Join(in.Close(), out.Close()))
	p := &Page{t: t, write: commands, waiting: map[int]chan message{}}
	var reading sync.WaitGroup
	reading.Go(func() { p.read(results) })
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // killed
		reading.Wait()
		must(t, errors.Join(commands.Close(), results.Close()))
	})
	target := struct {
		ID string `json:"targetId"`
	}{}
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	session := struct {
		ID string `json:"sessionId"`
	}{}
	p.call("Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &session)
	p.session = session.ID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.call(domain+".enable", nil, nil)
	}
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (p *Page) read(results *os.File) {
	lines := bufio.NewReader(results)
	for {
		text, err := lines.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		p.mu.Lock()
		switch waiting := p.waiting[m.ID]; {
		case m.Method == "Runtime.exceptionThrown" || m.Method == "Log.entryAdded" && !bytes.Contains(text, []byte(`"source":"network"`)):
			p.errors = append(p.errors, string(text))
		case waiting != nil:
			waiting <- m
			delete(p.waiting, m.ID)
		}
		p.mu.Unlock()
	}
}

func (p *Page) call(method string, params, result any) {
	p.t.Helper()
	p.mu.Lock()
	p.last++
	done := make(chan message, 1)
	p.waiting[p.last] = done
	text, err := json.Marshal(message{ID: p.last, Session: p.session, Method: method, Params: params})
	if err == nil {
		_, err = p.write.Write(append(text, 0))
	}
	p.mu.Unlock()
	must(p.t, err)
	select {
	case m := <-done:
		if m.Error != nil {
			p.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		if result != nil {
			must(p.t, json.Unmarshal(m.Result, result))
		}
	case <-time.After(patience):
		p.t.Fatalf("%s: no result", method)
	}
}

// Go loads a URL.
func (p *Page) Go(url string) { p.call("Page.navigate", map[string]any{"url": url}, nil) }

// Eval returns the value of a JavaScript expression as JSON. It waits for promises.
func (p *Page) Eval(expression string) string {
	p.t.Helper()
	var result struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text string `json:"text"`
		} `json:"exceptionDetails"`
	}
	p.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &result)
	if result.Exception != nil {
		p.t.Fatalf("%s: %s", expression, result.Exception.Text)
	}
	return string(result.Result.Value)
}

// Until waits until an expression is true.
func (p *Page) Until(expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); p.Eval(expression) != "true"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("this condition never became true: %s\nthe page shows\n%s", expression, p.Eval("document.body.innerText"))
		}
	}
}

// Press presses a key.
func (p *Page) Press(key string) {
	event := map[string]any{"type": "keyDown", "key": key}
	if len(key) == 1 {
		event["text"] = key
	}
	p.call("Input.dispatchKeyEvent", event, nil)
	p.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
}

// Size sets the size of the window.
func (p *Page) Size(width, height int, phone bool) {
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}, nil)
}

// Scheme sets the preferred color scheme, light or dark.
func (p *Page) Scheme(scheme string) {
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Picture saves a screenshot of the whole page to a file.
func (p *Page) Picture(file string) {
	p.t.Helper()
	var picture struct {
		Data string `json:"data"`
	}
	p.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &picture)
	data, err := base64.StdEncoding.DecodeString(picture.Data)
	must(p.t, err)
	must(p.t, os.WriteFile(file, data, 0o644))
}

// Errors returns the errors that the browser has logged, such as exceptions and violations of the content security policy, but not failed requests.
func (p *Page) Errors() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errors) == 0 {
		return nil
	}
	return fmt.Errorf("%d errors in the browser, the first: %s", len(p.errors), p.errors[0])
}
