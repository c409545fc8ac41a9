package browse

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

var (
	// ErrNotFound says that there is no such message, or none any more.
	ErrNotFound = errors.New("message not found")
	// ErrDecode says that the message is there and cannot be read.
	ErrDecode = errors.New("frame decode failed")
)

// Store is the part of the store behind the views of messages.
type Store interface {
	ListMessages(ctx context.Context, f store.MessageFilter) (store.RawJSON, error)
	FindMessage(ctx context.Context, tenant, partition uuid.UUID, hash [16]byte) (store.Place, bool, error)
	MessageState(ctx context.Context, tenant, partition uuid.UUID, offset int64) (store.RawJSON, error)
	SegmentAt(ctx context.Context, partition uuid.UUID, offset int64) (store.Segment, bool, error)
	SegmentsAt(ctx context.Context, keys []store.SegmentKey, maxBytes int64) (map[store.SegmentKey]store.Segment, error)
	SegmentsBelow(ctx context.Context, partition uuid.UUID, below int64, maxRows int, maxBytes int64) ([]store.Segment, error)
}

// Config bounds what is read and shown. Zero means the default.
type Config struct {
	// PreviewBytes is the longest payload that a listing shows; of a longer one it
	// shows the beginning. One message alone is shown whole.
	PreviewBytes int
	// PageBytes bounds the segments, as they are stored, that are read for one page
	// beyond its first. Messages in others are listed without their payloads.
	PageBytes int64
	// ScanSegments bounds the segments that are searched for a message of which the
	// sidecar knows nothing any more.
	ScanSegments int
}

// Defaults of Config.
const (
	PreviewBytesDefault = 32 << 10
	PageBytesDefault    = 32 << 20
	ScanSegmentsDefault = 5000
)

const (
	// scanPage and scanBytes bound what a search reads at once.
	scanPage  = 64
	scanBytes = 8 << 20
)

// Deps are what a Service works with.
type Deps struct {
	Store  Store
	Reader *segment.Reader
	Logger *slog.Logger
}

// Service shows messages. It is safe for concurrent use.
type Service struct {
	cfg Config
	Deps
}

// New returns a service.
func New(cfg Config, deps Deps) *Service {
	cfg.PreviewBytes = cmp.Or(cfg.PreviewBytes, PreviewBytesDefault)
	cfg.PageBytes = cmp.Or(cfg.PageBytes, PageBytesDefault)
	cfg.ScanSegments = cmp.Or(cfg.ScanSegments, ScanSegmentsDefault)
	return &Service{cfg, deps}
}

// encode writes JSON for people: without escapes of characters that are harmless here.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// shown is a payload as JSON; null for an empty one.
func shown(payload []byte) json.RawMessage {
	if len(payload) == 0 {
		return json.RawMessage("null")
	}
	return store.AsJSON(payload)
}

// orNil is a text or null.
func orNil(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// traceOf is the trace id of a frame or null.
func traceOf(f *segment.Frame) *uuid.UUID {
	if !f.HasTrace {
		return nil
	}
	return &f.TraceID
}
