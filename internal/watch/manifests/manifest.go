package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v3"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

// The decoder is strict, because a Service would differ from its manifest if a misspelled field were ignored.
type manifestReader struct {
	store   *watch.Store
	decoder runtime.Decoder
}

func newManifestReader(store *watch.Store) *manifestReader {
	codecs := serializer.NewCodecFactory(watch.NewScheme(), serializer.EnableStrict)
	return &manifestReader{store: store, decoder: codecs.UniversalDeserializer()}
}

type manifest struct {
	records []*watch.Record
	// problems are the Problems that belong to no object.
	problems []model.Problem
	// ignored are the kinds that are valid but not used.
	ignored []string
}

// read skips invalid documents.
func (m *manifestReader) read(file string, data []byte) *manifest {
	f := &fileReader{manifestReader: m, file: file, manifest: &manifest{}, wrong: watch.Problems{Object: model.FileRef(file)}}
	for i, doc := range splitDocuments(data) {
		f.where, f.line = fmt.Sprintf("document %d, line %d", i+1, doc.line), doc.line
		f.document(doc.text)
	}
	f.wrong.Origin = ""
	f.problems = f.wrong.Done()
	return f.manifest
}

type yamlDocument struct {
	text []byte
	line int // of the file, where the document begins
}

// In YAML, a line that starts with a marker always separates documents, in every context.
func splitDocuments(data []byte) []yamlDocument {
	var docs []yamlDocument
	current, content := yamlDocument{line: 1}, false
	flush := func(next int) {
		if content {
			docs = append(docs, splitObjects(current)...)
		}
		current, content = yamlDocument{line: next}, false
	}
	number := 0
	for line := range bytes.Lines(bytes.TrimPrefix(data, []byte("\ufeff"))) {
		number++
		marker, rest := isMarker(line)
		if marker {
			flush(number)
			line = rest
		}
		text := bytes.TrimSpace(line)
		if !content && len(text) > 0 && text[0] != '#' && line[0] != '%' {
			content = true
			// Drop comments and directives before the content, so that the document's line is the line of its first field.
			current = yamlDocument{line: number}
		}
		if content {
			current.text = append(current.text, line...)
		}
	}
	flush(0)
	return docs
}

// splitObjects splits a document of JSON objects, which need no markers between them. Text after the last object also becomes a
// document, so that it is not ignored.
func splitObjects(doc yamlDocument) (docs []yamlDocument) {
	for {
		var object json.RawMessage
		decoder := json.NewDecoder(bytes.NewReader(doc.text))
		if doc.text[0] != '{' || decoder.Decode(&object) != nil {
			return append(docs, doc) // YAML
		}
		docs = append(docs, yamlDocument{text: object, line: doc.line})
		rest := skipComments(doc.text[decoder.InputOffset():])
		doc.line += bytes.Count(doc.text[:len(doc.text)-len(rest)], []byte("\n"))
		doc.text = rest
		if len(rest) == 0 {
			return docs
		}
	}
}

func skipComments(text []byte) []byte {
	for {
		text = bytes.TrimLeft(text, " \t\r\n")
		if len(text) == 0 || text[0] != '#' {
			return text
		}
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
}

// isMarker also returns the rest of the line.
func isMarker(line []byte) (marker bool, rest []byte) {
	for _, m := range []string{"---", "..."} {
		if rest, ok := bytes.CutPrefix(line, []byte(m)); ok && (len(rest) == 0 || bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0]))) {
			return true, rest
		}
	}
	return false, nil
}

type fileReader struct {
	*manifestReader
	*manifest
	file, where string
	line        int // where the current document begins
	wrong       watch.Problems
}

// here returns the Problems of the file, located at the current document. Use it for Problems that belong to no object.
func (f *fileReader) here() *watch.Problems {
	f.wrong.Origin = f.where
	return &f.wrong
}

func (f *fileReader) document(text []byte) {
	raw, err := yaml.YAMLToJSONStrict(text)
	if err == nil {
		err = onlyOne(text)
	}
	if err != nil {
		f.here().Add("", "", "invalid YAML: %s", f.absoluteLines(err.Error()))
		return
	}
	f.object(raw, true)
}

// onlyOne returns an error if text follows a document in braces or brackets. The parser would ignore that text.
func onlyOne(text []byte) error {
	if text = bytes.TrimSpace(text); text[0] != '{' && text[0] != '[' || json.Valid(text) {
		return nil
	}
	decoder := goyaml.NewDecoder(bytes.NewReader(text))
	var first, more any
	if err := decoder.Decode(&first); err != nil {
		return err
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return errors.New("more text follows the object; separate documents with a --- line")
	}
	return nil
}

var yamlLine = regexp.MustCompile(`\bline (\d+)`)

// absoluteLines converts line numbers in a message of the YAML parser from lines of the document to lines of the file.
func (f *fileReader) absoluteLines(message string) string {
	message = strings.Join(strings.Fields(strings.TrimPrefix(message, "yaml: ")), " ")
	return yamlLine.ReplaceAllStringFunc(message, func(s string) string {
		n, err := strconv.Atoi(yamlLine.FindStringSubmatch(s)[1])
		if err != nil {
			return s // too large for a line number
		}
		return "line " + strconv.Itoa(n+f.line-1)
	})
}

func (f *fileReader) object(raw []byte, listAllowed bool) {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(raw, &meta); err != nil {
		f.here().Add("", "", "must be an object with apiVersion and kind")
		return
	}
	if meta.Kind == "" || meta.APIVersion == "" {
		f.here().Add("kind", meta.Kind, "must have an apiVersion and a kind")
		return
	}
	gvk := schema.FromAPIVersionAndKind(meta.APIVersion, meta.Kind)
	switch use := usage(gvk); {
	case use == useList && listAllowed, use == useObject:
		f.decode(raw)
	case use == useList:
		f.here().Add("kind", meta.Kind, "a list inside a list is not supported")
	case use == useIgnore:
		f.ignored = append(f.ignored, meta.Kind)
	case gvk.Group == "" && gvk.Kind == "Endpoints":
		f.here().AddWithRemedy("kind", meta.Kind, "has no effect", "use an EndpointSlice of discovery.k8s.io/v1")
	case gvk.Group == discoveryv1.GroupName:
		f.here().Add("apiVersion", meta.APIVersion, "must be %s", discoveryv1.SchemeGroupVersion)
	default:
		f.here().AddWithRemedy("kind", meta.APIVersion+" "+meta.Kind, "has no effect", "use only Service, EndpointSlice and Node")
	}
}

type use int

const (
	useUnknown use = iota // probably a mistake
	useObject             // parsed
	useList               // a list whose items are parsed
	useIgnore             // often in the same file as Services
)

func usage(gvk schema.GroupVersionKind) use {
	switch gvk.GroupVersion() {
	case v1.SchemeGroupVersion:
		switch gvk.Kind {
		case "Service", "Node":
			return useObject
		case "List", "ServiceList", "NodeList":
			return useList
		case "ConfigMap", "LimitRange", "Namespace", "PersistentVolume", "PersistentVolumeClaim", "Pod", "PodTemplate",
			"ReplicationController", "ResourceQuota", "Secret", "ServiceAccount":
			return useIgnore
		}
		return useUnknown
	case discoveryv1.SchemeGroupVersion:
		switch gvk.Kind {
		case "EndpointSlice":
			return useObject
		case "EndpointSliceList":
			return useList
		}
		return useUnknown
	}
	switch gvk.Group {
	case "admissionregistration.k8s.io", "apiextensions.k8s.io", "apps", "autoscaling", "batch", "gateway.networking.k8s.io",
		"networking.k8s.io", "policy", "rbac.authorization.k8s.io", "scheduling.k8s.io", "storage.k8s.io":
		return useIgnore
	}
	return useUnknown
}

func (f *fileReader) decode(raw []byte) {
	obj, _, err := f.decoder.Decode(raw, nil, nil)
	if err != nil {
		f.decodeProblems(err)
		return
	}
	switch obj := obj.(type) {
	case *v1.Service:
		f.put(obj, &obj.ObjectMeta, true)
	case *discoveryv1.EndpointSlice:
		f.put(obj, &obj.ObjectMeta, true)
	case *v1.Node:
		f.put(obj, &obj.ObjectMeta, false)
	case *v1.List:
		f.items(len(obj.Items), func(i int) { f.object(obj.Items[i].Raw, false) })
	case *v1.ServiceList:
		f.items(len(obj.Items), func(i int) { f.put(&obj.Items[i], &obj.Items[i].ObjectMeta, true) })
	case *discoveryv1.EndpointSliceList:
		f.items(len(obj.Items), func(i int) { f.put(&obj.Items[i], &obj.Items[i].ObjectMeta, true) })
	case *v1.NodeList:
		f.items(len(obj.Items), func(i int) { f.put(&obj.Items[i], &obj.Items[i].ObjectMeta, false) })
	}
}

func (f *fileReader) items(n int, read func(i int)) {
	list := f.where
	for i := range n {
		f.where = fmt.Sprintf("%s, item %d", list, i+1)
		read(i)
	}
	f.where = list
}

var unknownField = regexp.MustCompile(`^(unknown|duplicate) field "(.*)"$`)

func (f *fileReader) decodeProblems(err error) {
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		f.here().Add("", "", "does not match its kind: %v", err)
		return
	}
	for _, err := range strict.Errors() {
		if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
			f.here().AddWithRemedy(m[2], "", m[1]+" field", "correct or remove it")
			continue
		}
		f.here().Add("", "", "%v", err)
	}
}

// put sets the defaults that an API server would set.
func (f *fileReader) put(obj runtime.Object, meta *metav1.ObjectMeta, namespaced bool) {
	if namespaced && meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	if len(validation.IsDNS1123Subdomain(meta.Name)) > 0 {
		f.here().Add("metadata.name", meta.Name, "must be at most 253 lowercase letters, digits, '-' and '.', and begin and end with a letter or digit")
		return
	}
	if namespaced && len(validation.IsDNS1123Label(meta.Namespace)) > 0 {
		f.here().Add("metadata.namespace", meta.Namespace, "must be at most 63 lowercase letters, digits and '-', and begin and end with a letter or digit")
		return
	}
	if slice, ok := obj.(*discoveryv1.EndpointSlice); ok && slice.Labels[discoveryv1.LabelServiceName] == "" {
		f.here().Add("metadata.labels", "", "EndpointSlice %s/%s must have the label %s with the name of its Service",
			meta.Namespace, meta.Name, discoveryv1.LabelServiceName)
		return
	}
	r, err := f.store.Convert(obj, f.file+", "+f.where)
	if err != nil {
		panic("the decoder returned a kind that is not used: " + err.Error())
	}
	f.records = append(f.records, r)
}
