package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/browse"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
	"github.com/queenmq/queen/services/broker/internal/replay"
)

var aLetter = store.Letter{
	ID: uuid.MustParse("0190b7a4-0000-7000-8000-000000000001"), Queue: "q", Partition: "p", Group: "g", TransactionID: "t",
}

// graveyard has one dead letter at every address and under every id.
type graveyard struct {
	httpapi.DeadLetters
	lookup, move, purge error
	outcome             replay.Moved
	moves               []replay.Move
	letters             int64 // to be purged
	steps               []int
}

func (g *graveyard) DLQLetter(context.Context, uuid.UUID, uuid.UUID) (store.Letter, bool, error) {
	return aLetter, true, g.lookup
}

func (g *graveyard) DLQNewest(context.Context, uuid.UUID, uuid.UUID, string) (store.Letter, bool, error) {
	return aLetter, true, g.lookup
}

func (g *graveyard) DLQDelete(context.Context, uuid.UUID, uuid.UUID, string) (int64, error) {
	return 0, g.lookup
}

func (g *graveyard) DLQPurge(_ context.Context, _ store.DLQFilter, rows int) (int64, error) {
	n := min(g.letters, int64(rows))
	g.letters -= n
	g.steps = append(g.steps, rows)
	return n, g.purge
}

func (g *graveyard) Move(_ context.Context, m replay.Move) (replay.Moved, error) {
	g.moves = append(g.moves, m)
	return g.outcome, g.move
}

// setupGraveyard answers the paths of the two ways to replay.
func setupGraveyard(t *testing.T, held bool) (*bundle, *graveyard, []string) {
	t.Helper()
	g := &graveyard{outcome: replay.Moved{Replayed: store.Replayed{Result: store.ReplayMoved}}}
	b := setupWith(t, func(d *httpapi.Deps) {
		d.DeadLetters, d.Mover = g, g
	})
	b.modes.push.Store(held)
	return b, g, []string{"/api/v1/dlq/" + aLetter.ID.String() + "/replay", "/api/v1/messages/" + uuid.NewString() + "/t/retry"}
}

func TestReplaysAreHeldBackWithPushes(t *testing.T) {
	t.Parallel()
	b, g, paths := setupGraveyard(t, true)
	for _, path := range paths {
		b.want("POST", path, `{}`, http.StatusServiceUnavailable,
			`{"success":false,"result":"maintenance","error":"push maintenance is on: the dead letter was left where it is","dlqRowRemoved":false}`)
	}
	require.Empty(t, g.moves)
}

func TestFailedReplaysTellWhatIsKnown(t *testing.T) {
	t.Parallel()
	b, g, paths := setupGraveyard(t, false)
	for failure, want := range map[error]string{
		fmt.Errorf("replay: %w", context.DeadlineExceeded):                      `{"success":false,"error":"dlq replay failed: replay: context deadline exceeded","dlqRowRemoved":null}`,
		error(&pgconn.PgError{Severity: "ERROR", Code: "P0001", Message: "no"}): `{"success":false,"error":"dlq replay failed: ERROR: no (SQLSTATE P0001)","dlqRowRemoved":false}`,
		fmt.Errorf("acquire: %w", pgdb.ErrPool):                                 `{"success":false,"error":"pool","dlqRowRemoved":false}`,
	} {
		g.move = failure
		for _, path := range paths {
			b.want("POST", path, `{}`, http.StatusInternalServerError, want)
		}
	}
	g.lookup = errors.New("boom")
	b.want("POST", paths[0], `{}`, http.StatusInternalServerError, `{"success":false,"error":"dlq lookup failed: boom","dlqRowRemoved":false}`)
	b.want("POST", paths[1], `{}`, http.StatusInternalServerError, `{"error":"dlq lookup failed: boom"}`)
	b.want("DELETE", "/api/v1/messages/"+uuid.NewString()+"/t", "", http.StatusInternalServerError, `{"error":"dlq delete failed: boom"}`)
	g.purge = errors.New("boom")
	b.want("DELETE", "/api/v1/dlq?queue=q", "", http.StatusInternalServerError, `{"error":"dlq purge failed: boom"}`)
}

func TestALetterThatIsTakenMeanwhileIsGone(t *testing.T) {
	t.Parallel()
	b, g, paths := setupGraveyard(t, false)
	g.outcome = replay.Moved{Replayed: store.Replayed{Result: store.ReplayGone}}
	for _, path := range paths {
		res, body := b.call("POST", path, "")
		require.Equal(t, http.StatusNotFound, res.StatusCode, body)
		require.Contains(t, body, `"error":"Message not found"`)
	}
}

func TestPurgesGoOnUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	for letters, steps := range map[int64]int{0: 1, 4999: 1, 5000: 2, 5001: 2, 15000: 4} {
		b, g, _ := setupGraveyard(t, false)
		g.letters = letters
		b.want("DELETE", "/api/v1/dlq?queue=q&consumerGroup=g", "", http.StatusOK,
			fmt.Sprintf(`{"success":true,"deleted":%d,"queue":"q","consumerGroup":"g"}`, letters))
		require.Len(t, g.steps, steps, "%d letters", letters)
	}
}

// library answers every question about messages with an error.
type library struct {
	httpapi.Traces
	err error
}

func (l library) Page(context.Context, store.MessageFilter) ([]byte, error) { return nil, l.err }
func (l library) Message(context.Context, uuid.UUID, uuid.UUID, string) ([]byte, error) {
	return nil, l.err
}

func (l library) RecordTrace(context.Context, store.Trace) (store.RawJSON, error) { return nil, l.err }
func (l library) TraceNames(context.Context, uuid.UUID, store.PageArgs) (store.RawJSON, error) {
	return nil, l.err
}

func TestFailuresOfBrowsing(t *testing.T) {
	t.Parallel()
	message := "/api/v1/messages/" + uuid.NewString() + "/t"
	trace := `{"transactionId":"t","partitionId":"p","data":1}`
	for _, c := range []struct {
		err                        error
		method, path, body, answer string
		status                     int
	}{
		{errors.New("boom"), "GET", "/api/v1/messages", "", `{"error":"message list failed: boom"}`, 500},
		{errors.New("boom"), "GET", message, "", `{"error":"message lookup failed: boom"}`, 500},
		{errors.New("boom"), "POST", "/api/v1/traces", trace, `{"error":"trace failed: boom"}`, 500},
		{errors.New("boom"), "GET", "/api/v1/traces/names", "", `{"error":"trace lookup failed: boom"}`, 500},
		{pgdb.ErrPool, "GET", "/api/v1/messages", "", `{"error":"pool"}`, 500},
		{&store.BrowseRefused{Text: "too much"}, "GET", "/api/v1/messages", "", `{"error":"too much"}`, 400},
		{browse.ErrNotFound, "GET", message, "", `{"error":"Message not found"}`, 404},
		{browse.ErrDecode, "GET", message, "", `{"error":"frame decode failed"}`, 500},
	} {
		b := setupWith(t, func(d *httpapi.Deps) { d.Browser, d.Traces = library{err: c.err}, library{err: c.err} })
		b.want(c.method, c.path, c.body, c.status, c.answer)
	}
}
