// Command upstream builds etcd, kube-apiserver and kube-proxy from source for the end-to-end tests, if they are missing. With
// -path NAME, it builds nothing and prints the path of the program.
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
	path := flag.String("path", "", "print the path of this built program (etcd, kube-apiserver, kube-proxy) instead of building")
	flag.Parse()
	if err := run(*path); err != nil {
		fmt.Fprintln(os.Stderr, "upstream:", err)
		os.Exit(1)
	}
}

func run(program string) error {
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
	return upstream.Build(ctx, root, os.Stderr)
}
