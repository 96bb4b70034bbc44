// Package userspace is the data plane in user space: the agent's process listens at a loopback address for each port of
// a Service, and forwards clients to the Service's endpoints. It needs no privileges, and changes nothing in the kernel
// (decision 13).
//
// compile decides what each Service gets, as for the other data planes. frontend.go turns its virtual servers into
// listeners, ports.go opens and closes them, and loop.go follows the source. check.go finds
// out which loopback addresses there are. addresses.go serves Services at their own addresses, on a machine (Host) to
// which an agent adds addresses.
//
// May import: agent (known Problems), compile, finding, forward, forward/virtual, inet, kernel and model (values), view, want, zap.
package userspace
