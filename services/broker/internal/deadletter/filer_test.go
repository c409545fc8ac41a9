package deadletter_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/deadletter"
)

var (
	errAborted error = &pgconn.PgError{Severity: "ERROR", Code: "40001", Message: "could not serialize"}
	errRefused error = &pgconn.PgError{Severity: "ERROR", Code: "22000", Message: "data exception"}
	errLost          = fmt.Errorf("dlq head: %w", context.DeadlineExceeded)
)

const leaseGone = "invalid or expired lease"

// fakeStore holds one segment and answers filings from a list.
type fakeStore struct {
	segment store.Segment
	found   bool
	segErrs []error
	answers []any // error or store.DLQOutcome
	letters []store.DeadLetter
}

func (f *fakeStore) SegmentAt(context.Context, uuid.UUID, int64) (store.Segment, bool, error) {
	if len(f.segErrs) > 0 {
		err := f.segErrs[0]
		f.segErrs = f.segErrs[1:]
		return store.Segment{}, false, err
	}
	return f.segment, f.found, nil
}

func (f *fakeStore) DLQHead(_ context.Context, d store.DeadLetter) (store.DLQOutcome, error) {
	f.letters = append(f.letters, d)
	if len(f.answers) == 0 {
		return store.DLQOutcome{OK: true}, nil
	}
	a := f.answers[0]
	f.answers = f.answers[1:]
	if err, ok := a.(error); ok {
		return store.DLQOutcome{}, err
	}
	return a.(store.DLQOutcome), nil
}

func setup(t *testing.T) (*fakeStore, *deadletter.Filer, deadletter.Poison) {
	t.Helper()
	packer, err := segment.NewPacker(3)
	require.NoError(t, err)
	reader, err := segment.NewReader(0)
	require.NoError(t, err)
	blob, _, err := packer.Pack([]segment.Frame{
		{MessageID: uuid.New(), TransactionID: "first", Payload: []byte(`1`)},
		{MessageID: uuid.UUID{9}, TransactionID: "poison", Payload: []byte(`{"a":"\u0000"}`)},
	})
	require.NoError(t, err)
	f := &fakeStore{segment: store.Segment{Base: 40, End: 41, Blob: blob}, found: true}
	p := deadletter.Poison{PartitionID: uuid.UUID{1}, Group: "g", Worker: "w", Offset: 41}
	return f, deadletter.NewFiler(f, reader, slog.New(slog.DiscardHandler)), p
}

func soon() time.Time { return time.Now().Add(time.Second) }

func TestTheMessageIsFiledAsItWasSent(t *testing.T) {
	t.Parallel()
	f, filer, p := setup(t)
	p.Reasons = []deadletter.Reason{{TransactionID: "poison", Error: "boom"}}
	refusal, err := filer.File(t.Context(), soon(), p)
	require.NoError(t, err)
	require.Empty(t, refusal)
	require.Equal(t, []store.DeadLetter{{
		PartitionID: uuid.UUID{1}, Group: "g", Worker: "w", Offset: 41, MessageID: uuid.UUID{9},
		TransactionID: "poison", Payload: []byte(`{"a":"\u0000"}`), Error: "boom",
	}}, f.letters)
}

func TestReasons(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reasons []deadletter.Reason
		want    string
	}{
		"of the poison message":             {[]deadletter.Reason{{"x", "other"}, {"poison", "mine"}}, "mine"},
		"the first, when it gave none":      {[]deadletter.Reason{{"x", ""}, {"y", "first"}, {"z", "second"}, {"poison", ""}}, "first"},
		"the default, when nobody gave one": {[]deadletter.Reason{{"poison", ""}}, "Retries exhausted"},
		"without what a text cannot hold":   {[]deadletter.Reason{{"poison", "a\x00b\xffc"}}, "ab\uFFFDc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, filer, p := setup(t)
			p.Reasons = c.reasons
			_, err := filer.File(t.Context(), soon(), p)
			require.NoError(t, err)
			require.Equal(t, c.want, f.letters[0].Error)
		})
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	ok, gone := store.DLQOutcome{OK: true}, store.DLQOutcome{Error: leaseGone}
	for name, c := range map[string]struct {
		prepare func(*fakeStore, *deadletter.Poison)
		refusal string
		err     error
		letters int
	}{
		"segment gone":    {func(f *fakeStore, _ *deadletter.Poison) { f.found = false }, "dlq rejected", nil, 0},
		"segment corrupt": {func(f *fakeStore, _ *deadletter.Poison) { f.segment.Blob = f.segment.Blob[:9] }, "dlq rejected", nil, 0},
		"aborts in passing": {func(f *fakeStore, _ *deadletter.Poison) {
			f.segErrs = []error{errAborted, errLost}
			f.answers = []any{errAborted, ok}
		}, "", nil, 2},
		"lease gone":                        {func(f *fakeStore, _ *deadletter.Poison) { f.answers = []any{gone} }, leaseGone, nil, 1},
		"lost answer, filed the first time": {func(f *fakeStore, _ *deadletter.Poison) { f.answers = []any{errLost, gone} }, "", nil, 2},
		"refused":                           {func(f *fakeStore, _ *deadletter.Poison) { f.answers = []any{errRefused} }, "", errRefused, 1},
		"segment unreadable":                {func(f *fakeStore, _ *deadletter.Poison) { f.segErrs = []error{errRefused} }, "", errRefused, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, filer, p := setup(t)
			c.prepare(f, &p)
			refusal, err := filer.File(t.Context(), soon(), p)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.refusal, refusal)
			require.Len(t, f.letters, c.letters)
		})
	}
}

func TestAttemptsEndAtTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, filer, p := setup(t)
		for range 1000 {
			f.answers = append(f.answers, errAborted)
		}
		_, err := filer.File(t.Context(), soon(), p)
		require.ErrorIs(t, err, errAborted)
		require.NotEmpty(t, f.answers)
		require.Greater(t, len(f.letters), 3)
	})
}
