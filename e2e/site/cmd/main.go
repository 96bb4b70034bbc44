// Command cmd writes the website to a directory.
package main

import (
	"fmt"
	"os"

	"github.com/kube-ipvs/kube-ipvs/e2e/site"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./e2e/site/cmd DIRECTORY (from the top of the checkout)")
		os.Exit(2)
	}
	if err := site.Build(".", os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("open " + os.Args[1] + "/index.html")
}
