package kerneltest_test

import (
	"context"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

// A test defines the initial kernel as text, runs operations until a crash, and compares the final text.
func Example() {
	f := kerneltest.MustParseDump(`
		ip link add kube-ipvs0 type dummy
		ipvsadm -A -t 10.96.0.1:443 -s rr
		ipvsadm -a -t 10.96.0.1:443 -r 192.0.2.1:6443 -m -w 1
	`)
	read, err := f.Read(context.Background())
	if err != nil {
		panic(err)
	}
	var plan []kernel.Op
	for key := range read.Servers {
		plan = append(plan,
			kernel.Op{Verb: kernel.Update, Object: kernel.Server{Key: key, Scheduler: "wlc", MaskBits: 32}},
			kernel.Op{Verb: kernel.Create, Object: kernel.BoundAddress{Addr: key.Addr.Addr()}})
	}
	f.CrashAfter(1)
	fmt.Println(f.Apply(context.Background(), plan)[1])
	f.Restart()
	fmt.Println(f.Apply(context.Background(), plan)[1])
	fmt.Print(f.Dump())
	// Output:
	// ip addr add 10.96.0.1/32 dev kube-ipvs0: the agent was killed
	// <nil>
	// ip link add kube-ipvs0 type dummy
	// ipvsadm -A -t 10.96.0.1:443 -s wlc
	// ipvsadm -a -t 10.96.0.1:443 -r 192.0.2.1:6443 -m -w 1
	// ip addr add 10.96.0.1/32 dev kube-ipvs0
}
