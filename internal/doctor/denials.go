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

// recentDenial is how long a denial matters if no agent says when it started.
const recentDenial = 24 * time.Hour

var (
	auditTime = regexp.MustCompile(`audit\((\d+)\.\d+:`)
	auditComm = regexp.MustCompile(`comm="?kube-ipvs"?(\s|$)`)
	auditPID  = regexp.MustCompile(`\bpid=(\d+)\b`)
)

// readDenials looks for actions of the agent that a security module has denied: in the kernel's log, or with auditd in its log.
func (f *Facts) readDenials(h reader) {
	apparmor := h.word("/sys/module/apparmor/parameters/enabled", denials) == "Y"
	_, selinux := h.may("/sys/fs/selinux/enforce", denials)
	if !apparmor && !selinux {
		if f.Container && !apparmor {
			f.unread(denials, errors.New("whether SELinux is on is not visible from here"))
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

// isDenial reports whether a line of a log is a denial of the running agent.
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

// checkDenials finds a security module that keeps the agent from its work.
func checkDenials(f Facts) []finding.Finding {
	if len(f.Denials) == 0 {
		return nil
	}
	return finding.One(finding.Warning, "security module", "it denies what the agent does", examples(f.Denials),
		"allow it in the profile of AppArmor (aa-logprof) or the policy of SELinux (audit2allow), and restart the agent")
}
