package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Object is one rendered object.
type Object struct {
	runtime.Object

	Meta   metav1.Object
	Kind   string
	Source string // the template that it comes from
	Text   string
}

// Name says which object it is: Kind/name.
func (o Object) Name() string { return o.Kind + "/" + o.Meta.GetName() }

// Objects are those of one rendering, in its order.
type Objects []Object

// Parse reads what `helm template` prints. It refuses objects of unknown kinds, unknown or
// repeated fields, and two objects of one kind and name.
func Parse(text string) (Objects, error) {
	var objects Objects
	seen := map[string]bool{}
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("split into documents: %w", err)
		}
		source, body := split(document)
		if len(body) == 0 {
			continue
		}
		object, err := parse(body)
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", source, err, body)
		}
		object.Source = source
		if seen[object.Name()] {
			return nil, fmt.Errorf("%s: a second %s", source, object.Name())
		}
		seen[object.Name()] = true
		objects = append(objects, object)
	}
}

// split takes Helm's comment about the origin of a document from it.
func split(document []byte) (source string, body []byte) {
	for line := range bytes.Lines(document) {
		if rest, ok := bytes.CutPrefix(line, []byte("# Source: ")); ok {
			source = string(bytes.TrimSpace(rest))
		} else if !bytes.HasPrefix(line, []byte("#")) && !bytes.HasPrefix(line, []byte("---")) {
			body = append(body, line...)
		}
	}
	return source, bytes.TrimSpace(body)
}

func parse(body []byte) (Object, error) {
	typed, kind, err := decoder.Decode(body, nil, nil)
	if err != nil {
		return Object{}, err
	}
	meta, ok := typed.(metav1.Object)
	if !ok {
		return Object{}, fmt.Errorf("a %s has no metadata", kind.Kind)
	}
	if meta.GetName() == "" {
		return Object{}, fmt.Errorf("a %s has no name", kind.Kind)
	}
	return Object{Object: typed, Meta: meta, Kind: kind.Kind, Text: string(body)}, nil
}

// All returns the objects of one type.
func All[T runtime.Object](objects Objects) []T {
	var all []T
	for _, object := range objects {
		if typed, ok := object.Object.(T); ok {
			all = append(all, typed)
		}
	}
	return all
}
