package forward

import "golang.org/x/sys/unix"

// pipe is a pipe of the kernel. A connection has one only while it copies data, so idle connections need no file descriptors for
// it.
type pipe struct{ out, in int }

// pipes are empty, and wait for their next use.
var pipes = make(chan *pipe, 64)

func takePipe() (*pipe, error) {
	select {
	case p := <-pipes:
		return p, nil
	default:
	}
	ends := make([]int, 2)
	if err := unix.Pipe2(ends, unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	return &pipe{ends[0], ends[1]}, nil
}

// release keeps an empty pipe for its next use.
func (p *pipe) release(left int64) {
	if p == nil {
		return
	}
	if left == 0 {
		select {
		case pipes <- p:
			return
		default:
		}
	}
	_ = unix.Close(p.out)
	_ = unix.Close(p.in)
}
