// Package values reads values.yaml and values.schema.json side by side.
package values

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Value is one entry of values.yaml that holds no further entries, or none that are
// described.
type Value struct {
	Path      []string
	Default   any
	Described bool // it, or what it is a part of, has a comment for helm-docs
	Documents bool // the comment is its own
}

// Name is its path as --set has it.
func (v Value) Name() string { return strings.Join(v.Path, ".") }

// Read returns all leaves of a values file, and the paths of all maps that have entries.
func Read(file string) (leaves []Value, maps [][]string, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, nil, err
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, nil, fmt.Errorf("%s is not a map", file)
	}
	r := reader{}
	r.read(document.Content[0], nil, false)
	return r.leaves, r.maps, r.err
}

type reader struct {
	leaves []Value
	maps   [][]string
	err    error
}

func (r *reader) read(node *yaml.Node, path []string, described bool) {
	r.maps = append(r.maps, path)
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		own := strings.Contains("\n"+key.HeadComment, "\n# -- ")
		here := append(path[:len(path):len(path)], key.Value)
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
			r.read(value, here, described || own)
			continue
		}
		var content any
		if err := value.Decode(&content); err != nil {
			r.err = err
		}
		r.leaves = append(r.leaves, Value{Path: here, Default: content, Described: described || own, Documents: own})
	}
}

// Nested makes a map of maps that holds a value at a path.
func Nested(path []string, value any) map[string]any {
	for i := len(path) - 1; i >= 0; i-- {
		value = map[string]any{path[i]: value}
	}
	nested, _ := value.(map[string]any)
	return nested
}

// Schema is a JSON schema, or a part of one.
type Schema struct {
	root map[string]any
	here map[string]any
}

// ReadSchema reads a schema from a file.
func ReadSchema(file string) (Schema, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return Schema{}, err
	}
	var root map[string]any
	if err := json.Unmarshal(content, &root); err != nil {
		return Schema{}, err
	}
	return Schema{root: root, here: root}, nil
}

// At returns what the schema says about a path, which it has to name itself.
func (s Schema) At(path []string) (Schema, bool) {
	for _, key := range path {
		properties, _ := s.Find("properties").(map[string]any)
		next, ok := properties[key].(map[string]any)
		if !ok {
			return Schema{}, false
		}
		s.here = next
	}
	return s, true
}

// Find returns a keyword of the schema, or of what it refers to.
func (s Schema) Find(keyword string) any {
	if found, ok := s.here[keyword]; ok {
		return found
	}
	var parts []any
	if reference, ok := s.here["$ref"].(string); ok {
		parts = append(parts, s.resolve(reference))
	}
	if all, ok := s.here["allOf"].([]any); ok {
		parts = append(parts, all...)
	}
	for _, part := range parts {
		if here, ok := part.(map[string]any); ok {
			if found := (Schema{root: s.root, here: here}).Find(keyword); found != nil {
				return found
			}
		}
	}
	return nil
}

// resolve follows a reference within the file.
func (s Schema) resolve(reference string) any {
	var here any = s.root
	for key := range strings.SplitSeq(strings.TrimPrefix(reference, "#/"), "/") {
		properties, ok := here.(map[string]any)
		if !ok {
			return nil
		}
		here = properties[key]
	}
	return here
}
