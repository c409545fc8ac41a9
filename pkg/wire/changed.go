package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Bounds of the entries of POST /api/v1/partitions/changed.
const (
	ChangedEntriesMax   = 64
	ChangedLimitDefault = 1000 // and the most
)

// ChangedEntry asks for the partitions of one queue, page by page.
type ChangedEntry struct {
	Queue string
	Since *time.Time // nil: all of them
	After *string    // nil: from the start
	Limit int        // from 1 to ChangedLimitDefault
}

type changedBody struct {
	Entries []struct {
		Queue string       `json:"queue"`
		Since *string      `json:"since"`
		After *string      `json:"after"`
		Limit *json.Number `json:"limit"`
	} `json:"entries"`
}

// ParseChanged reads the body of POST /api/v1/partitions/changed. A limit is clamped.
func ParseChanged(body []byte) ([]ChangedEntry, error) {
	p, err := newParser(body)
	if err != nil {
		return nil, err
	}
	raw, err := p.raw()
	if err != nil {
		return nil, err
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	var b changedBody
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, badBody("%v", err)
	}
	if len(b.Entries) > ChangedEntriesMax {
		return nil, badBody("entries: %d of them, at most %d are allowed", len(b.Entries), ChangedEntriesMax)
	}
	entries := make([]ChangedEntry, len(b.Entries))
	for i, e := range b.Entries {
		entries[i] = ChangedEntry{Queue: e.Queue, After: e.After, Limit: ChangedLimitDefault}
		if err := entries[i].fill(e.Since, e.Limit); err != nil {
			return nil, badBody("entries[%d].%v", i, err)
		}
	}
	return entries, nil
}

func (e *ChangedEntry) fill(since *string, limit *json.Number) error {
	if e.Queue == "" {
		return errors.New("queue: a name is needed")
	}
	if err := CheckName(KindQueue, e.Queue); err != nil {
		return err
	}
	if e.After != nil && strings.ContainsRune(*e.After, 0) {
		*e.After = "" // no cursor either, but one that PostgreSQL can take
	}
	if since != nil {
		at, err := time.Parse(time.RFC3339Nano, *since)
		if err != nil {
			return fmt.Errorf("since: %q is no RFC 3339 instant", clip(*since))
		}
		e.Since = &at
	}
	if limit != nil {
		n, err := limit.Float64()
		if err != nil {
			return fmt.Errorf("limit: %q is no number", limit.String())
		}
		e.Limit = int(min(max(n, 1), ChangedLimitDefault))
	}
	return nil
}
