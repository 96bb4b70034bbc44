package pods

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
)

// TestMessagesOfAFailure: if a command fails although it has printed a document, the report says why. A verdict is not a failure.
func TestMessagesOfAFailure(t *testing.T) {
	const stderr = "1\n2\n3\n4\n\n5\nkube-ipvs: no space left\n"
	replies := map[string]reply{
		"cleanup": {stdout: `{"kind": "Cleanup"}`, stderr: stderr, exit: 1},
		"status":  {stdout: unwellDocument, stderr: stderr, exit: 3},
		"version": {stdout: `{"version": "v0.1.0"}`, stderr: stderr},
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/pods") {
			serveExec(w, r, func(_ string, line []string) reply { return replies[line[1]] })
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{agentOn("node-1", corev1.PodRunning)}})
	}))
	defer api.Close()
	cfg := Config{Client: rest.Config{Host: api.URL}, Namespace: "kube-system", Timeout: 10 * time.Second}
	for command, reply := range replies {
		q := fleet.Question{Command: command}
		answers, left, err := ask(t, cfg, q)
		if err != nil || len(answers) != 1 {
			t.Fatal(answers, err)
		}
		if messages := answers[0].Messages; (messages != nil) != (reply.exit != 0) {
			t.Errorf("%s with exit status %d: messages %q", command, reply.exit, messages)
		}
		var evidence []string
		for _, f := range merged(q, answers, left).Findings {
			if f.Subject == command {
				evidence = f.Evidence[0].Observed
			}
		}
		if want := []string{"2", "3", "4", "5", "kube-ipvs: no space left"}; (command == "cleanup") != slices.Equal(evidence, want) || command != "cleanup" && evidence != nil {
			t.Errorf("%s: the report says %q", command, evidence)
		}
	}
}
