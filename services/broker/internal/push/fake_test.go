package push_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queenmq/queen/pkg/store"
)

// The kinds of failures that the store tells apart.
var (
	errAborted   error = &pgconn.PgError{Severity: "ERROR", Code: "40P01", Message: "deadlock detected"}
	errUndefined error = &pgconn.PgError{Severity: "ERROR", Code: "42883", Message: "function does not exist"}
	errRefused   error = &pgconn.PgError{Severity: "ERROR", Code: "P0001", Message: "QMULTI resolved 1 of 2"}
	errLost            = fmt.Errorf("push multi: %w", context.DeadlineExceeded)
)

type laneName struct{ queue, partition string }

// fakeLane is one partition: its segments and the ids of its frames.
type fakeLane struct {
	id       uuid.UUID
	segments []store.Segment
	hashes   map[string]int64 // to offset
	last     int64
}

// fakeStore is a small model of the log: one transaction per call, a probe over
// all that is stored, all or nothing per segment.
type fakeStore struct {
	mu      sync.Mutex
	lanes   map[laneName]*fakeLane
	windows map[string]int // by queue; absent means 3600
	calls   [][]store.PushSegment
	// fail is asked on every call, from 1. The call takes effect before the
	// error is returned when committed is true.
	fail func(call int, segments []store.PushSegment) (committed bool, err error)
	// settingsErr fails QueueSettings.
	settingsErr error
	// settingsErrs fails one QueueSettings each, before that.
	settingsErrs []error
	// gone makes SegmentAt find nothing.
	gone bool
}

func newFake() *fakeStore {
	return &fakeStore{lanes: make(map[laneName]*fakeLane), windows: make(map[string]int)}
}

func (f *fakeStore) PushBundle(_ context.Context, segments []store.PushSegment, _ store.LockWait) ([]store.PushVerdict, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, segments)
	committed, err := true, error(nil)
	if f.fail != nil {
		committed, err = f.fail(len(f.calls), segments)
	}
	if err != nil && !committed {
		return nil, err
	}
	seen := make(map[laneName]bool)
	verdicts := make([]store.PushVerdict, len(segments))
	for i := range segments {
		name := laneName{segments[i].Queue, segments[i].Partition}
		if seen[name] {
			return nil, errors.New("a bundle names a lane twice")
		}
		seen[name] = true
		verdicts[i] = f.push(name, &segments[i])
	}
	return verdicts, err
}

func (f *fakeStore) push(name laneName, s *store.PushSegment) store.PushVerdict {
	l := f.lanes[name]
	if l == nil {
		l = &fakeLane{id: uuid.New(), hashes: make(map[string]int64), last: -1}
		f.lanes[name] = l
	}
	v := store.PushVerdict{PartitionID: l.id, Status: store.PushQueued, BaseOffset: l.last + 1}
	window, set := f.windows[s.Queue]
	probes := (window > 0 || !set) && s.Verified != store.VerifiedMinted
	for i := range s.Count {
		if off, dup := l.hashes[string(s.Hashes[16*i:16*i+16])]; dup && probes {
			v.Dups = append(v.Dups, store.Dup{Index: i, Offset: off})
		}
	}
	if len(v.Dups) > 0 {
		v.Status = store.PushDuplicate
		return v
	}
	for i := range s.Count {
		l.hashes[string(s.Hashes[16*i:16*i+16])] = l.last + 1 + int64(i)
	}
	l.segments = append(l.segments, store.Segment{Base: l.last + 1, End: l.last + int64(s.Count), Blob: bytes.Clone(s.Blob)})
	l.last += int64(s.Count)
	return v
}

func (f *fakeStore) SegmentAt(_ context.Context, partition uuid.UUID, offset int64) (store.Segment, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.lanes {
		if l.id != partition || f.gone {
			continue
		}
		for _, s := range l.segments {
			if s.Base <= offset && offset <= s.End {
				return s, true, nil
			}
		}
	}
	return store.Segment{}, false, nil
}

func (f *fakeStore) QueueSettings(_ context.Context, _ uuid.UUID, queue string) (store.QueueSettings, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	window, set := f.windows[queue]
	if len(f.settingsErrs) > 0 {
		err := f.settingsErrs[0]
		f.settingsErrs = f.settingsErrs[1:]
		return store.QueueSettings{}, false, err
	}
	return store.QueueSettings{DedupWindow: window}, set, f.settingsErr
}

// failFirst fails the first call without effect.
func failFirst(err error) func(int, []store.PushSegment) (bool, error) {
	return func(call int, _ []store.PushSegment) (bool, error) {
		if call == 1 {
			return false, err
		}
		return true, nil
	}
}

// loseFirst commits the first call and loses its answer.
func loseFirst(call int, _ []store.PushSegment) (bool, error) {
	if call == 1 {
		return true, errLost
	}
	return true, nil
}
