package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// parseVerdicts reads the answer of log_push_multi_v1 for n segments.
func parseVerdicts(text []byte, n int) ([]PushVerdict, error) {
	if verdicts, ok := parseQueued(text, n); ok {
		return verdicts, nil
	}
	var rows []struct {
		Status      PushStatus `json:"status"`
		BaseOffset  int64      `json:"baseOffset"`
		CreatedAt   time.Time  `json:"createdAt"`
		PartitionID uuid.UUID  `json:"partitionId"`
		Dups        []struct {
			Index  int   `json:"i"`
			Offset int64 `json:"off"`
		} `json:"dups"`
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, err
	}
	if len(rows) != n {
		return nil, fmt.Errorf("%d verdicts for %d segments", len(rows), n)
	}
	verdicts := make([]PushVerdict, n)
	for i, r := range rows {
		verdicts[i] = PushVerdict{Status: r.Status, PartitionID: r.PartitionID, BaseOffset: r.BaseOffset, CreatedAt: r.CreatedAt}
		for _, d := range r.Dups {
			verdicts[i].Dups = append(verdicts[i].Dups, Dup{Index: d.Index, Offset: d.Offset})
		}
	}
	return verdicts, nil
}

// parseQueued reads what nearly every answer is, segments that were stored, in the
// one form in which PostgreSQL writes it. It reports false for anything else.
func parseQueued(text []byte, n int) ([]PushVerdict, bool) {
	text, ok := bytes.CutPrefix(text, []byte("["))
	verdicts := make([]PushVerdict, n)
	for i := range verdicts {
		if i > 0 {
			if text, ok = bytes.CutPrefix(text, []byte(", ")); !ok {
				return nil, false
			}
		}
		if !ok {
			return nil, false
		}
		if text, ok = parseOneQueued(text, &verdicts[i]); !ok {
			return nil, false
		}
	}
	return verdicts, string(text) == "]"
}

func parseOneQueued(text []byte, v *PushVerdict) (rest []byte, ok bool) {
	at, text, ok := between(text, `{"status": "queued", "createdAt": "`, `"`)
	if !ok {
		return nil, false
	}
	base, text, ok := between(text, `, "baseOffset": `, `,`)
	if !ok {
		return nil, false
	}
	id, text, ok := between(text, ` "partitionId": "`, `"}`)
	if !ok {
		return nil, false
	}
	v.Status = PushQueued
	var errs [3]error
	v.CreatedAt, errs[0] = time.Parse(time.RFC3339Nano, string(at))
	v.BaseOffset, errs[1] = strconv.ParseInt(string(base), 10, 64)
	v.PartitionID, errs[2] = uuid.ParseBytes(id)
	return text, errs == [3]error{}
}

// between takes what stands between two texts off the beginning.
func between(text []byte, before, after string) (inner, rest []byte, ok bool) {
	text, ok = bytes.CutPrefix(text, []byte(before))
	if !ok {
		return nil, nil, false
	}
	return bytes.Cut(text, []byte(after))
}
