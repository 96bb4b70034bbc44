// Command upstream builds missing upstream programs (etcd, kube-apiserver, kube-proxy) from source for the end-to-end tests. With
// -cluster, it also builds the programs of a cluster with kubelets; -tests adds Kubernetes' own tests. With -peers, it also
// builds the proxies of other projects. With -path NAME, it builds nothing and prints the program's path. With -fetch, it only
// downloads.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

func main() {
	path := flag.String("path", "", "print the path of this built program (such as etcd or kubelet) instead of building")
	cluster := flag.Bool("cluster", false, "also build the programs of a cluster with kubelets")
	tests := flag.Bool("tests", false, "like -cluster, and also build Kubernetes' own tests")
	peers := flag.Bool("peers", false, "also build the proxies of other projects")
	fetch := flag.Bool("fetch", false, "only download what a build needs")
	flag.Parse()
	set := upstream.ControlPlane
	switch {
	case *tests:
		set = upstream.KubernetesTests
	case *cluster:
		set = upstream.Cluster
	case *peers:
		set = upstream.Peers
	}
	if err := run(*path, set, *fetch); err != nil {
		fmt.Fprintln(os.Stderr, "upstream:", err)
		os.Exit(1)
	}
}

func run(program string, set upstream.Set, fetch bool) error {
	root, err := upstream.Root()
	if err != nil {
		return err
	}
	if program != "" {
		path, err := upstream.Path(root, program)
		if err != nil {
			return err
		}
		fmt.Println(path)
		return nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if fetch {
		return upstream.Fetch(ctx, root, set)
	}
	return upstream.Build(ctx, root, set, os.Stderr)
}
