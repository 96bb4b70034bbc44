// Command kubeproxyfields records the fields of kube-proxy's configuration, with their Go types, for several versions of Kubernetes. It downloads
// only the modules that define these types. A test in internal/config checks that the agent accepts all of these fields.
//
//	go run ./e2e/testbed/cmd/kubeproxyfields 0.33.13 0.34.13
package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

const file = "internal/config/testdata/kube-proxy-fields.txt"

func main() {
	if err := record(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kubeproxyfields:", err)
		os.Exit(1)
	}
}

// record writes the fields for the given versions of the module k8s.io/kube-proxy, such as 0.33.13 for Kubernetes 1.33.13. If only some versions have
// a field, record lists them after it.
func record(modules []string) error {
	if len(modules) == 0 {
		return errors.New("name the versions, such as 0.33.13 0.34.4")
	}
	var all, fields []string
	versions := map[string][]string{}
	for _, module := range modules {
		r := reader{version: module, modules: map[string]string{}}
		r.fields("", "k8s.io/kube-proxy/config/v1alpha1", "KubeProxyConfiguration")
		if r.err != nil {
			return fmt.Errorf("version %s: %w", module, r.err)
		}
		kubernetes := "1" + strings.TrimPrefix(module, "0")
		all = append(all, kubernetes)
		for _, field := range r.lines {
			if versions[field] == nil {
				fields = append(fields, field)
			}
			versions[field] = append(versions[field], kubernetes)
		}
	}
	text := fmt.Sprintf("%s %s\n", time.Now().UTC().Format(time.DateOnly), strings.Join(all, " "))
	for _, field := range fields {
		if text += field; len(versions[field]) < len(all) {
			text += " " + strings.Join(versions[field], " ")
		}
		text += "\n"
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

type reader struct {
	version string
	modules map[string]string // the directory of each module
	lines   []string
	err     error
}

// fields adds the fields of a struct. For a field that is a struct, it adds the fields of that struct.
func (r *reader) fields(path, pkg, name string) {
	structs, imports := r.parse(pkg)
	if structs[name] == nil {
		r.err = errors.Join(r.err, fmt.Errorf("%s has no struct %s", pkg, name))
		return
	}
	for _, field := range structs[name].Fields.List {
		tag, _ := strconv.Unquote(field.Tag.Value)
		json, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		full := strings.Trim(path+"."+json, ".")
		from, typ := pkg, types.ExprString(field.Type)
		if of, ok := field.Type.(*ast.SelectorExpr); ok {
			from, typ = imports[types.ExprString(of.X)], of.Sel.Name
		}
		_, isStruct := structs[typ]
		switch {
		case typ == "TypeMeta", json == "-": // apiVersion, kind, and fields that are not in the file
		case typ == "TimeOrMetaDuration": // a struct that JSON encodes as one value
			r.lines = append(r.lines, full+" "+typ)
		case from == pkg && isStruct, from != pkg && strings.HasPrefix(from, "k8s.io/component-base/"):
			r.fields(full, from, typ)
		default:
			r.lines = append(r.lines, full+" "+typ)
		}
	}
}

// parse returns the structs of a package, and the paths of its imports by name.
func (r *reader) parse(pkg string) (structs map[string]*ast.StructType, imports map[string]string) {
	structs, imports = map[string]*ast.StructType{}, map[string]string{}
	parts := strings.SplitN(pkg, "/", 3)
	module := parts[0] + "/" + parts[1]
	files, _ := filepath.Glob(filepath.Join(r.module(module), parts[2], "types.go"))
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			r.err = errors.Join(r.err, err)
			continue
		}
		for _, i := range parsed.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			if i.Name != nil {
				imports[i.Name.Name] = path
			}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					structs[spec.Name.Name] = s
				}
			}
			return true
		})
	}
	return structs, imports
}

// module downloads a module of the same release, and returns its directory.
func (r *reader) module(name string) string {
	if r.modules[name] == "" {
		module, err := upstream.Download(context.Background(), name+"@v"+r.version)
		r.err = errors.Join(r.err, err)
		r.modules[name] = module.Dir
	}
	return r.modules[name]
}
