package replay_test

import (
	"context"

	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/replay"
)

// fakeStore answers from a list, and then that it moved the letter.
type fakeStore struct {
	answers []any // error or store.Replayed
	calls   []store.Replay
}

func (f *fakeStore) DLQReplay(_ context.Context, r store.Replay) (store.Replayed, error) {
	f.calls = append(f.calls, r)
	if len(f.answers) == 0 {
		return store.Replayed{Result: store.ReplayMoved, Offset: 7}, nil
	}
	a := f.answers[0]
	f.answers = f.answers[1:]
	if err, failed := a.(error); failed {
		return store.Replayed{}, err
	}
	return a.(store.Replayed), nil
}

type woken []string

func (w *woken) Wake(_ uuid.UUID, queue, partition string) { *w = append(*w, queue+"/"+partition) }

func setup(t *testing.T, answers ...any) (*replay.Service, *fakeStore, *woken) {
	t.Helper()
	packer, err := segment.NewPacker(segment.DefaultLevel)
	require.NoError(t, err)
	f, w := &fakeStore{answers: answers}, &woken{}
	return replay.New(0, replay.Deps{Store: f, Packer: packer, IDs: mint.NewSource(), Announcer: w}), f, w
}

var letter = store.Letter{ID: uuid.MustParse("0190b7a4-0000-7000-8000-000000000001"), Payload: []byte(`{"a":1}`)}

func move() replay.Move {
	return replay.Move{Tenant: store.DefaultTenant(), ProducerSub: "me", Letter: letter, Queue: "q", Partition: "p"}
}

func TestAMoveIsAPushOfOneMessage(t *testing.T) {
	t.Parallel()
	s, f, w := setup(t)
	out, err := s.Move(t.Context(), move())
	require.NoError(t, err)
	require.Equal(t, store.Replayed{Result: store.ReplayMoved, Offset: 7}, out.Replayed)
	require.Equal(t, "dlq:"+letter.ID.String(), out.TransactionID)
	require.Equal(t, woken{"q/p"}, *w)
	require.Len(t, f.calls, 1)
	want := segment.Hash(out.TransactionID)
	require.Equal(t, want[:], f.calls[0].Hash)
	reader, err := segment.NewReader(0)
	require.NoError(t, err)
	frame, err := reader.Frame(f.calls[0].Blob, 0)
	require.NoError(t, err)
	require.Equal(t, segment.Frame{MessageID: out.MessageID, TransactionID: out.TransactionID, ProducerSub: "me", Payload: letter.Payload}, frame)
}

func TestNothingIsAnnouncedThatWasNotMoved(t *testing.T) {
	t.Parallel()
	for _, result := range []store.ReplayResult{store.ReplayDuplicate, store.ReplayGone} {
		s, _, w := setup(t, store.Replayed{Result: result, Offset: 3})
		out, err := s.Move(t.Context(), move())
		require.NoError(t, err)
		require.Equal(t, store.Replayed{Result: result, Offset: 3}, out.Replayed)
		require.Equal(t, uuid.Nil, out.MessageID)
		require.Empty(t, *w)
	}
}

func TestMovesThatSurelyFailedAreRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		aborted := fmt.Errorf("replay: %w", &pgconn.PgError{Severity: "ERROR", Code: "40P01"})
		s, f, w := setup(t, aborted, aborted)
		out, err := s.Move(t.Context(), move())
		require.NoError(t, err)
		require.Equal(t, store.ReplayMoved, out.Result)
		require.Len(t, f.calls, 3)
		require.Equal(t, f.calls[0], f.calls[2], "the same message")
		require.Equal(t, woken{"q/p"}, *w)
	})
}

func TestOtherFailuresAreNot(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"lost":    fmt.Errorf("replay: %w", context.DeadlineExceeded),
		"refused": fmt.Errorf("replay: %w", &pgconn.PgError{Severity: "ERROR", Code: "P0001"}),
	} {
		s, f, w := setup(t, failure)
		_, err := s.Move(t.Context(), move())
		require.ErrorIs(t, err, failure, name)
		require.Equal(t, name == "lost", store.Ambiguous(err))
		require.Len(t, f.calls, 1)
		require.Empty(t, *w)
	}
}
