package nodelock

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/rundir"
)

// holder describes the process that holds the lock. That process writes it to the file.
type holder struct {
	PID int `json:"pid"`
	// PIDNamespace shows readers in other containers that PID belongs to another PID namespace.
	PIDNamespace string `json:"pidNamespace"`
	Command      string `json:"command"`
	// DataPlane is the setting of the last agent. Other commands that hold the lock keep it.
	DataPlane string `json:"dataPlane,omitempty"`
}

const maxHolder = 4 << 10

// tryLock opens and locks the file. If another process holds the lock, it returns ErrHeld with the holder.
func (p place) tryLock() (*os.File, error) {
	file, err := p.open()
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("acquire the node lock: %w; run kube-ipvs as root", err)
	case err != nil:
		return nil, fmt.Errorf("acquire the node lock: %w", err)
	}
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.Join(fmt.Errorf("%w%s", ErrHeld, readHolder(file)), file.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("acquire the node lock: lock %s: %w", file.Name(), err), file.Close())
	}
	before, _ := decode(file)
	writeHolder(file, before.DataPlane)
	return file, nil
}

// open opens the file. Only root can open it, because any user who can open a file can lock it.
func (p place) open() (*os.File, error) {
	if err := rundir.Make(p.dir); err != nil {
		return nil, fmt.Errorf("%w; in a container, mount the host's %s", err, p.dir)
	}
	path := filepath.Join(p.dir, p.file)
	return examine(os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600))
}

// examine closes a file that users other than root can write or lock.
func examine(file *os.File, err error) (*os.File, error) {
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) && errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link; remove it", failed.Path)
	}
	if err != nil {
		return nil, err
	}
	path := file.Name()
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file (%s); remove it", path, info.Mode().Type())
	case !rundir.Trusted(rundir.Owner(info)):
		err = fmt.Errorf("%s belongs to user %d, not to root; remove it", path, rundir.Owner(info))
	case info.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("%s has mode %#o, so other users can lock it; remove it", path, info.Mode().Perm())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// writeHolder records this process, for diagnostics only. If the write fails, for example on a full file system, the
// lock is still effective.
func writeHolder(file *os.File, dataPlane string) {
	text, err := json.Marshal(holder{os.Getpid(), pidNamespace(), command(os.Args), dataPlane})
	if err == nil && file.Truncate(0) == nil {
		_, _ = file.WriteAt(append(text, '\n'), 0)
	}
}

// readHolder describes the holder, such as " (kube-ipvs run, process 42)". It returns "" if the holder is unknown.
func readHolder(file *os.File) string {
	h, err := decode(file)
	if err != nil {
		return ""
	}
	if h.PIDNamespace != pidNamespace() {
		return fmt.Sprintf(" (%s, process %d in another container; to find it, run fuser %s on the host)", h.Command, h.PID, file.Name())
	}
	return fmt.Sprintf(" (%s, process %d)", h.Command, h.PID)
}

// Record adds the agent's data plane to the file, for LastDataPlane.
func (l *Lock) Record(dataPlane string) { writeHolder(l.file, dataPlane) }

// Holder returns the process that holds the lock, or that last held it. It returns 0 if that is unknown or the process is in another container.
func Holder() int {
	if h := last(); h.PIDNamespace == pidNamespace() {
		return h.PID
	}
	return 0
}

// LastDataPlane returns the data plane of the agent that holds the lock, or that held it until it ended or was killed. It returns "" if
// that is unknown.
func LastDataPlane() string { return last().DataPlane }

// last returns the zero value if the file cannot be read.
func last() holder {
	p, err := thisNode()
	if err != nil {
		return holder{}
	}
	h, _ := p.read()
	return h
}

func (p place) read() (holder, error) {
	file, err := examine(os.OpenFile(filepath.Join(p.dir, p.file), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0))
	if err != nil {
		return holder{}, err
	}
	defer file.Close()
	return decode(file)
}

// decode returns the zero value on an error.
func decode(file *os.File) (holder, error) {
	text := make([]byte, maxHolder)
	n, err := file.ReadAt(text, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return holder{}, err
	}
	var h holder
	if err := json.Unmarshal(text[:n], &h); err != nil {
		return holder{}, err
	}
	return h, nil
}

func pidNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid")
	return name
}

// command returns the program and its subcommand. It omits the flags, which are long and may contain private data.
func command(args []string) string {
	words := []string{filepath.Base(args[0])}
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		words = append(words, args[1])
	}
	return strings.Join(words, " ")
}
