package kv

import (
	"encoding/json"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// clampPages gives every getPrefix a limit that is at most the given one. The last of
// two members of one name counts, so that it is added where one is there already.
// The operations have been inspected, and are sound.
func clampPages(ops json.RawMessage, limit int) json.RawMessage {
	var elements []json.RawMessage
	if json.Unmarshal(ops, &elements) != nil {
		return ops
	}
	out := []byte{'['}
	for i, op := range elements {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, op...)
		if want, clamp := pageOver(op, limit); clamp {
			out = append(out[:len(out)-1], `,"limit":`...)
			out = append(strconv.AppendInt(out, int64(want), 10), '}')
		}
	}
	return append(out, ']')
}

// pageOver tells whether an operation asks for a longer page than limit.
func pageOver(op json.RawMessage, limit int) (want int, over bool) {
	var page struct {
		Op    any             `json:"op"`
		Limit json.RawMessage `json:"limit"`
	}
	if jsontext.Value(op).Kind() != '{' || json.Unmarshal(op, &page) != nil || page.Op != "getPrefix" {
		return 0, false
	}
	asked := float64(pageDefault)
	if page.Limit != nil {
		var err error
		if asked, err = strconv.ParseFloat(string(page.Limit), 64); err != nil {
			return 0, false // null, or what the database refuses
		}
	}
	return limit, asked > float64(limit)
}
