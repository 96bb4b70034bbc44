package doctor

import (
	"errors"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

const denials = "denials of AppArmor and SELinux"

// If the agent's start time is unknown, doctor ignores denials older than this.
const recentDenial = 24 * time.Hour

var (
	auditTime = regexp.MustCompile(`audit\((\d+)\.\d+:`)
	auditComm = regexp.MustCompile(`comm="?kube-ipvs"?(\s|$)`)
	auditPID  = regexp.MustCompile(`\bpid=(\d+)\b`)
)

// readDenials searches the kernel's log and auditd's log for actions of the agent that a security module denied.
func (f *Facts) readDenials(h reader) {
	apparmor := h.word("/sys/module/apparmor/parameters/enabled", denials) == "Y"
	_, selinux := h.may("/sys/fs/selinux/enforce", denials)
	if !apparmor && !selinux {
		if f.Container && !apparmor {
			f.unread(denials, errors.New("the state of SELinux is not visible from this container"))
		}
		return
	}
	if f.LogUnread != nil {
		f.unread(denials, f.LogUnread)
	}
	logged, err := h.Tail("/var/log/audit/audit.log")
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.Container:
		f.unread(denials, errHostFiles)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		f.unread(denials, err)
	}
	for line := range strings.Lines(f.Log + "\n" + string(logged)) {
		if f.isDenial(line) {
			f.Denials = append(f.Denials, strings.TrimSpace(line))
		}
	}
}

// isDenial reports whether a log line records a denied action of the running agent.
func (f *Facts) isDenial(line string) bool {
	if !strings.Contains(line, `apparmor="DENIED"`) && !strings.Contains(line, "avc:  denied") {
		return false
	}
	since := f.Now.Add(-recentDenial)
	ours := auditComm.MatchString(line)
	if f.View != nil {
		since = f.View.Node.Started
		pid := auditPID.FindStringSubmatch(line)
		ours = ours || pid != nil && pid[1] == strconv.Itoa(f.View.Node.PID)
	}
	at := auditTime.FindStringSubmatch(line)
	if at == nil || !ours {
		return ours
	}
	seconds, err := strconv.ParseInt(at[1], 10, 64)
	return err != nil || !time.Unix(seconds, 0).Before(since)
}

func checkDenials(f Facts) []finding.Finding {
	if len(f.Denials) == 0 {
		return nil
	}
	return finding.One(finding.Warning, "security module", "it denies actions of the agent", examples(f.Denials),
		"allow these actions in the AppArmor profile (aa-logprof) or the SELinux policy (audit2allow), and restart the agent")
}
