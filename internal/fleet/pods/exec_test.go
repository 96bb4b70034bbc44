package pods

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

type reply struct {
	stdout, stderr string
	exit           int
	hang           bool
	endless        bool // writes until the client disconnects
	echoes         bool // writes what it reads
}

// serveExec implements pods/exec as a kubelet does, but runs no container. It speaks SPDY, but not WebSockets.
func serveExec(w http.ResponseWriter, r *http.Request, run func(pod string, line []string) reply) {
	if !httpstream.IsUpgradeRequest(r) || r.Header.Get("Sec-Websocket-Version") != "" {
		http.Error(w, "use SPDY", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		return // Handshake has sent the response
	}
	streams := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	byType := map[string]httpstream.Stream{}
	for range streamsOf(r) {
		s := <-streams
		byType[s.Headers().Get(corev1.StreamType)] = s
	}
	answer := run(podOf(r.URL.Path), r.URL.Query()["command"])
	if answer.hang {
		<-conn.CloseChan()
		return
	}
	if answer.echoes {
		_, _ = io.Copy(struct{ io.Writer }{byType[corev1.StreamTypeStdout]}, struct{ io.Reader }{byType[corev1.StreamTypeStdin]})
	}
	for answer.endless {
		if _, err := io.WriteString(byType[corev1.StreamTypeStdout], "."); err != nil {
			return
		}
		select {
		case <-conn.CloseChan():
			return
		case <-time.After(time.Millisecond):
		}
	}
	stdout := struct{ io.Reader }{strings.NewReader(answer.stdout)} // hides WriterTo, because an SPDY frame is limited to 16 MiB
	_, _ = io.Copy(byType[corev1.StreamTypeStdout], stdout)         // the client may have disconnected
	_, _ = io.WriteString(byType[corev1.StreamTypeStderr], answer.stderr)
	status := metav1.Status{Status: metav1.StatusSuccess}
	if answer.exit != 0 {
		status = metav1.Status{
			Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Message: fmt.Sprint("exit ", answer.exit),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(answer.exit)}}},
		}
	}
	_ = json.NewEncoder(byType[corev1.StreamTypeError]).Encode(status)
	for _, s := range byType {
		_ = s.Close()
	}
	<-conn.CloseChan()
}

// streamsOf returns the number of streams that a request opens. The API server and the kubelet use different query parameters.
func streamsOf(r *http.Request) int {
	if q := r.URL.Query(); q.Get("stdin") == "true" || q.Get("input") == "1" {
		return 4
	}
	return 3
}

// podOf returns the pod in a URL path of the API server (…/pods/NAME/exec) or kubelet
// (/exec/NAMESPACE/NAME/CONTAINER).
func podOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "exec" {
		return parts[2]
	}
	return parts[len(parts)-2]
}
