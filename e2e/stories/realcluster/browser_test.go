package realcluster

import (
	"bufio"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/realcluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestUI opens the page of `kubectl ipvs ui`, which reaches the agents through the API server and the kubelets.
func TestUI(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	link := s.startUI()
	if status, _ := fetch(t, "http://"+link.Host+"/"); status != http.StatusForbidden {
		t.Errorf("without a token: status %d", status)
	}
	if status, _ := fetch(t, "http://"+link.Host+"/?token=guess"); status != http.StatusForbidden {
		t.Errorf("with a wrong token: status %d", status)
	}
	response, err := http.Get(link.String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(text), "<title>") {
		t.Fatalf("with the token: %s, error %v\n%s", response.Status, err, text)
	}
	page := response.Request.URL.String() // contains the secret of the session
	if status, _ := fetch(t, link.String()); status != http.StatusForbidden {
		t.Errorf("with a used token: status %d", status)
	}
	for _, n := range s.Nodes {
		for question, want := range map[string]string{
			"overview?":                    `"verdict":"well"`,
			"service?service=default/web&": n.IPv4 + ":30080",
			"explain?to=default/web&from=" + realcluster.Gateway + "&": `"verdict":"passes"`,
			"changes?": `"HistoryList"`,
			"doctor?":  `"verdict"`,
		} {
			if status, text := fetch(t, page+"api/"+question+"node="+n.Name); status != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%s: status %d, want %s in the answer:\n%s", question, status, want, text)
			}
		}
	}
}

// startUI returns the link that the command prints.
func (s stage) startUI() *url.URL {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "/usr/bin/env", "kubectl", "ipvs", "ui")
	cmd.Env = s.Env()
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cmd.Wait() }) // the context ends before
	printed := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		printed += lines.Text() + "\n"
		if link := regexp.MustCompile(`http://127\.0\.0\.1:\d+/\?token=\w+`).FindString(printed); link != "" {
			parsed, err := url.Parse(link)
			if err != nil {
				s.t.Fatal(err)
			}
			return parsed
		}
	}
	s.t.Fatalf("kubectl ipvs ui printed no link:\n%s", printed)
	return nil
}

func fetch(t *testing.T, at string) (status int, text string) {
	t.Helper()
	response, err := http.Get(at)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}
