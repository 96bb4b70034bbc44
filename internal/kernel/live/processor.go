package live

import (
	"os"
	"runtime"
)

// withSecondProcessor runs a job that may keep a thread busy, such as an audit, whose thousands of system calls never wait. On a node with one
// CPU, Go otherwise has one processor, and each step of a change would wait up to 10 ms for it. With a second processor, the kernel's scheduler
// prefers the change, because the audit's thread has a low priority. Two processors all the time would cost a quarter more CPU. A GOMAXPROCS in
// the environment stays as it is.
func withSecondProcessor(job func()) {
	if os.Getenv("GOMAXPROCS") != "" || runtime.GOMAXPROCS(0) > 1 {
		job()
		return
	}
	runtime.GOMAXPROCS(2)
	defer runtime.SetDefaultGOMAXPROCS()
	job()
}
