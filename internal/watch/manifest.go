package watch

import (
	"bytes"
	"encoding/json"
	"fmt"
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

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// manifestReader reads manifest files. It is strict: a misspelt field that is silently ignored is a Service that does not do
// what its author reads in it.
type manifestReader struct {
	converter
	decoder runtime.Decoder
}

func newManifestReader(c converter) *manifestReader {
	codecs := serializer.NewCodecFactory(newScheme(), serializer.EnableStrict)
	return &manifestReader{converter: c, decoder: codecs.UniversalDeserializer()}
}

// manifest is what one file says.
type manifest struct {
	records []*record
	// problems are those that no object can be named for.
	problems []model.Problem
	// ignored are the kinds in it that are none of our business.
	ignored []string
}

// read parses a file. Documents that are wrong are left out.
func (m *manifestReader) read(file string, data []byte) *manifest {
	f := &fileReader{manifestReader: m, file: file, manifest: &manifest{}, wrong: problems{object: file}}
	for i, doc := range splitDocuments(data) {
		f.where, f.line = fmt.Sprintf("document %d, line %d", i+1, doc.line), doc.line
		f.document(doc.text)
	}
	f.wrong.origin = ""
	f.problems = f.wrong.done()
	return f.manifest
}

// yamlDocument is one document of a file, and the line it begins in.
type yamlDocument struct {
	text []byte
	line int
}

// splitDocuments cuts a file at its document markers. YAML has them at the start of a line only, whatever is around them.
func splitDocuments(data []byte) []yamlDocument {
	var docs []yamlDocument
	current, content := yamlDocument{line: 1}, false
	flush := func(next int) {
		if content {
			docs = append(docs, current)
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
			// Comments and directives before the content are dropped: the document's line is where its author sees it begin.
			current = yamlDocument{line: number}
		}
		if content {
			current.text = append(current.text, line...)
		}
	}
	flush(0)
	return docs
}

// isMarker tells a line that begins or ends a document, and what follows on it.
func isMarker(line []byte) (marker bool, rest []byte) {
	for _, m := range []string{"---", "..."} {
		if rest, ok := bytes.CutPrefix(line, []byte(m)); ok && (len(rest) == 0 || bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0]))) {
			return true, rest
		}
	}
	return false, nil
}

// fileReader is the reading of one file.
type fileReader struct {
	*manifestReader
	*manifest
	file, where string
	line        int // that the current document begins in
	wrong       problems
}

// problem notes something about a document that no object can be named for.
func (f *fileReader) problem(field, value, format string, args ...any) {
	f.wrong.origin = f.where
	f.wrong.add(field, value, format, args...)
}

func (f *fileReader) document(text []byte) {
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		f.problem("", "", "is not YAML: %s", f.absoluteLines(err.Error()))
		return
	}
	f.object(raw, true)
}

var yamlLine = regexp.MustCompile(`\bline (\d+)`)

// absoluteLines turns the lines of a document, in a message of the YAML parser, into lines of the file.
func (f *fileReader) absoluteLines(message string) string {
	message = strings.Join(strings.Fields(strings.TrimPrefix(message, "yaml: ")), " ")
	return yamlLine.ReplaceAllStringFunc(message, func(s string) string {
		n, err := strconv.Atoi(yamlLine.FindStringSubmatch(s)[1])
		if err != nil {
			return s // longer than any file
		}
		return "line " + strconv.Itoa(n+f.line-1)
	})
}

// object reads one object; a list, where one may be, is read as its items.
func (f *fileReader) object(raw []byte, listAllowed bool) {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(raw, &meta); err != nil {
		f.problem("", "", "must be an object with apiVersion and kind")
		return
	}
	if meta.Kind == "" || meta.APIVersion == "" {
		f.problem("kind", meta.Kind, "must have an apiVersion and a kind")
		return
	}
	gvk := schema.FromAPIVersionAndKind(meta.APIVersion, meta.Kind)
	switch use := usage(gvk); {
	case use == useList && listAllowed, use == useObject:
		f.decode(raw)
	case use == useList:
		f.problem("kind", meta.Kind, "must not be a list inside a list")
	case use == useIgnore:
		f.ignored = append(f.ignored, meta.Kind)
	case gvk.Group == "" && gvk.Kind == "Endpoints":
		f.problem("kind", meta.Kind, "has no effect: write an EndpointSlice of discovery.k8s.io/v1")
	case gvk.Group == discoveryv1.GroupName:
		f.problem("apiVersion", meta.APIVersion, "must be %s", discoveryv1.SchemeGroupVersion)
	default:
		f.problem("kind", meta.APIVersion+" "+meta.Kind, "has no effect: only Service, EndpointSlice and Node are read")
	}
}

// How a kind in a manifest is used.
type use int

const (
	useNot    use = iota // a mistake, probably
	useObject            // read
	useList              // its items are read
	useIgnore            // commonly stands beside Services
)

// usage is the table of kinds.
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
		return useNot
	case discoveryv1.SchemeGroupVersion:
		switch gvk.Kind {
		case "EndpointSlice":
			return useObject
		case "EndpointSliceList":
			return useList
		}
		return useNot
	}
	switch gvk.Group {
	case "admissionregistration.k8s.io", "apiextensions.k8s.io", "apps", "autoscaling", "batch", "gateway.networking.k8s.io",
		"networking.k8s.io", "policy", "rbac.authorization.k8s.io", "scheduling.k8s.io", "storage.k8s.io":
		return useIgnore
	}
	return useNot
}

// decode reads an object that is used.
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

// unknownField is how the strict decoder says what it does not know.
var unknownField = regexp.MustCompile(`^(unknown|duplicate) field "(.*)"$`)

func (f *fileReader) decodeProblems(err error) {
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		f.problem("", "", "does not fit its kind: %v", err)
		return
	}
	for _, err := range strict.Errors() {
		if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
			f.problem(m[2], "", "%s field: correct or remove it", m[1])
			continue
		}
		f.problem("", "", "%v", err)
	}
}

// put takes an object, with the defaults that an API server would have given it.
func (f *fileReader) put(obj runtime.Object, meta *metav1.ObjectMeta, namespaced bool) {
	if namespaced && meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	if len(validation.IsDNS1123Subdomain(meta.Name)) > 0 {
		f.problem("metadata.name", meta.Name, "must be lower case letters, digits, '-' and '.', at most 253 of them, and begin and end with a letter or digit")
		return
	}
	if namespaced && len(validation.IsDNS1123Label(meta.Namespace)) > 0 {
		f.problem("metadata.namespace", meta.Namespace, "must be lower case letters, digits and '-', at most 63 of them, and begin and end with a letter or digit")
		return
	}
	if slice, ok := obj.(*discoveryv1.EndpointSlice); ok && slice.Labels[discoveryv1.LabelServiceName] == "" {
		f.problem("metadata.labels", "", "of EndpointSlice %s/%s must hold %s, with the name of its Service",
			meta.Namespace, meta.Name, discoveryv1.LabelServiceName)
		return
	}
	r, err := f.convert(obj, f.file+", "+f.where)
	if err != nil {
		panic("a decoded manifest is of a kind that was not asked for: " + err.Error())
	}
	f.records = append(f.records, r)
}
