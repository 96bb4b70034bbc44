package main

import (
	"flag"
	"fmt"
	"os"
)

const usage = `usage: release build -version vX.Y.Z [-image REGISTRY/REPOSITORY] [-checkout DIRECTORY] [-draft] [-signed] -out DIRECTORY
       release publish [-dry-run] -version vX.Y.Z -image REGISTRY/REPOSITORY -charts REGISTRY/PATH [-checkout DIRECTORY] -from DIRECTORY
       release package -out DIRECTORY    (the deb and the rpm of this checkout, for tests)
`

func main() {
	if err := execute(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func execute(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no command\n%s", usage)
	}
	flags := flag.NewFlagSet("release "+args[0], flag.ContinueOnError)
	version := flags.String("version", "", "the version, such as v0.1.0 or v0.1.0-rc.1")
	image := flags.String("image", "", "the image's registry and repository, without a tag")
	checkout := flags.String("checkout", ".", "the checkout to release")
	out := flags.String("out", "", "output directory")
	from := flags.String("from", "", "directory with a release")
	charts := flags.String("charts", "", "the chart's registry and path, without its name")
	draft := flags.Bool("draft", false, "mark file names and notes as not proven by the long tests")
	signed := flags.Bool("signed", false, "fail if a key or the image's name is missing")
	dry := flags.Bool("dry-run", false, "publish nothing; print each step and what it lacks")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "build":
		b, err := newBuild(*checkout, *out, *version, *image)
		if err != nil {
			return err
		}
		if err := b.requireSigned(*signed); err != nil {
			return err
		}
		if *draft {
			b.markUnproven()
		}
		return b.all()
	case "package":
		return packagesOnly(*checkout, *out)
	case "publish":
		built := *version
		if *draft {
			built += notProven
		}
		return publication{*checkout, *from, *version, built, *image, *charts, os.Getenv}.publish(*dry)
	}
	return fmt.Errorf("unknown command %q\n%s", args[0], usage)
}
