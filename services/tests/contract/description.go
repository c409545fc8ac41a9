package contract

import (
	"encoding/json"
	"errors"
	"maps"

	"github.com/pb33f/libopenapi"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"go.yaml.in/yaml/v3"
)

// openCopy ends the name of a schema's copy that others are made of.
const openCopy = ".open"

// parse reads a description and closes its schemas: a member that is not described is
// allowed to clients, who must ignore it, but not to the broker under test.
func parse(text []byte) (*v3.Document, error) {
	var description struct {
		Components struct {
			Schemas map[string]map[string]any `yaml:"schemas"`
		} `yaml:"components"`
	}
	var whole map[string]any
	if err := yaml.Unmarshal(text, &whole); err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(text, &description); err != nil {
		return nil, err
	}
	closeSchemas(whole)
	components, ok := whole["components"].(map[string]any)
	if !ok {
		return nil, errors.New("no components")
	}
	schemas := map[string]any{}
	for name, schema := range description.Components.Schemas {
		closeSchemas(schema)
		open := maps.Clone(schema)
		delete(open, "unevaluatedProperties")
		schemas[name], schemas[name+openCopy] = schema, open
	}
	components["schemas"] = schemas
	return build(whole)
}

func build(whole map[string]any) (*v3.Document, error) {
	text, err := json.Marshal(whole)
	if err != nil {
		return nil, err
	}
	doc, err := libopenapi.NewDocument(text)
	if err != nil {
		return nil, err
	}
	model, err := doc.BuildV3Model()
	if err != nil {
		return nil, err
	}
	return &model.Model, nil
}

// closeSchemas lets the objects below a node have no members but those that they name.
// The parts of a composed one stay open, since each of them names only some.
func closeSchemas(node any) {
	switch n := node.(type) {
	case map[string]any:
		parts, composed := n["allOf"].([]any)
		if _, object := n["properties"].(map[string]any); object || composed {
			n["unevaluatedProperties"] = false
		}
		for key, child := range n {
			if key != "allOf" {
				closeSchemas(child)
			}
		}
		for _, part := range parts {
			openPart(part)
		}
	case []any:
		for _, child := range n {
			closeSchemas(child)
		}
	}
}

func openPart(part any) {
	schema, ok := part.(map[string]any)
	if !ok {
		return
	}
	if ref, ok := schema["$ref"].(string); ok {
		schema["$ref"] = ref + openCopy
		return
	}
	closeSchemas(schema)
	delete(schema, "unevaluatedProperties")
}
