package store_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestPositionalAck(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		upto  int64
		ok    bool
		count int
		want  store.AckOutcome
		row   ackState
	}{
		"the end of the batch":             {4, true, 4, store.AckOutcome{OK: true, Acked: 4, Released: true}, finished(4, 14)},
		"beyond it is clamped":             {math.MaxInt64, true, 3, store.AckOutcome{OK: true, Acked: 3, Released: true}, finished(4, 13)},
		"below it keeps the retry state":   {2, true, 2, store.AckOutcome{OK: true, Acked: 2, Released: true}, free(2, 12, 1)},
		"below the cursor moves nothing":   {-1, true, 0, store.AckOutcome{OK: true, Released: true}, free(0, 10, 1)},
		"a negative count counts nothing":  {4, true, -5, store.AckOutcome{OK: true, Released: true}, finished(4, 10)},
		"not ok only gives the lease back": {4, false, 4, store.AckOutcome{OK: true, Released: true}, free(0, 10, 1)},
	}
	shared := setup(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := shared.in(t)
			pid := b.laneOf(name)
			b.leased(pid, "by id", "w", 0, 4)
			b.leased(pid, "by name", "w", 0, 4)
			got, err := b.store.AckAt(t.Context(), pid, "by id", "w", c.upto, c.ok, c.count)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.row, b.state(pid, "by id"))
			got, err = b.store.Ack(t.Context(), store.DefaultTenant(), name, "p", "by name", "w", c.upto, c.ok, c.count)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.row, b.state(pid, "by name"))
		})
	}
}

func TestPositionalAckRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.cursorAt(pid, group, 0)
	refused := func(want string, out store.AckOutcome, err error) {
		t.Helper()
		require.NoError(t, err)
		require.Equal(t, store.AckOutcome{Error: want}, out)
	}
	out, err := b.store.AckAt(t.Context(), pid, group, "", 4, true, 1)
	refused("no leased batch", out, err)
	out, err = b.store.Ack(t.Context(), store.DefaultTenant(), "q", "nope", group, "", 4, true, 1)
	refused("partition not found", out, err)
	out, err = b.store.Ack(t.Context(), uuid.New(), "q", "p", group, "", 4, true, 1)
	refused("partition not found", out, err)
	require.Equal(t, ackState{}, b.state(pid, group))
}

// An ordinary end of a lease keeps the time it was taken at: queue details show it.
func TestAcksKeepTheTimeOfTheLease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.leased(pid, "a", "w", 0, 4)
	b.leased(pid, "b", "w", 0, 4)
	_, err := b.store.AckByHash(t.Context(), pid, "a", "w", hashes(4), statuses(ok))
	require.NoError(t, err)
	_, err = b.store.AckAt(t.Context(), pid, "b", "w", 4, true, 4)
	require.NoError(t, err)
	require.EqualValues(t, 2, b.count(`SELECT count(*) FROM queen.log_consumers WHERE lease_acquired_at IS NOT NULL AND lease_expires_at IS NULL`))
}

func TestAckMultiAnswersInInputOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p, r := b.lane(), b.queued(segment("q", "r", 1, 2)).PartitionID
	b.leased(p, "b", "w1", 0, 4)
	b.leased(p, "a", "w2", 0, 4)
	b.leased(r, "a", "w3", -1, 1)
	got, err := b.store.AckMulti(t.Context(), []store.AckRow{
		{PartitionID: p, Group: "b", Worker: "w1", End: 4, Count: 4},
		{PartitionID: r, Group: "a", Worker: "stranger", End: 1, Count: 2},
		{PartitionID: p, Group: "b", Worker: "w1", End: 4, Count: 4}, // finds the lease gone
		{PartitionID: r, Group: "a", Worker: "w3", End: 1, Count: 2},
		{PartitionID: uuid.New(), Group: "a", Worker: "w3", End: 1, Count: 2},
		{PartitionID: p, Group: "a", Worker: "w2", End: 2, Count: 2},
	})
	require.NoError(t, err)
	require.Equal(t, []store.AckOutcome{
		{OK: true, Acked: 4, Released: true},
		{Error: "invalid or expired lease"},
		{Error: "invalid or expired lease"},
		{OK: true, Acked: 2, Released: true},
		{Error: "consumer not found"},
		{OK: true, Acked: 2, Released: true},
	}, got)
	require.Equal(t, finished(4, 14), b.state(p, "b"))
	require.Equal(t, free(2, 12, 1), b.state(p, "a"))
	require.Equal(t, finished(1, 12), b.state(r, "a"))

	got, err = b.store.AckMulti(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestAckMultiRefusesMisalignedArrays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	err := b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT queen.log_ack_multi_v1('{}', '{a}', '{}', '{}', '{}')`)
		return err
	})
	require.ErrorContains(t, err, "QACKM misaligned arrays")
	require.Equal(t, store.Permanent, store.Classify(err))
}

func TestRenewLease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p, r := b.lane(), b.queued(segment("q", "r", 1, 2)).PartitionID
	b.leased(p, "near", "w", 0, 4)
	b.leased(r, "far", "w", -1, 1)
	b.leased(r, "gone", "w", -1, 1)
	b.leased(r, "other", "x", -1, 1)
	b.expireLease(r, "gone")
	b.exec(`UPDATE queen.log_consumers SET lease_expires_at = '2100-01-02T03:04:05.678901Z' WHERE consumer_group = 'far'`)
	left := func(group string) (seconds float64) {
		b.one([]any{&seconds}, `SELECT extract(epoch FROM lease_expires_at - now())::float8 FROM queen.log_consumers WHERE consumer_group = $1`, group)
		return seconds
	}

	n, at, err := b.store.RenewLease(t.Context(), "w", 300)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, at)
	expires, err := time.Parse(time.RFC3339Nano, at)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(300*time.Second), expires, time.Minute, "the earliest of both")
	require.InDelta(t, 300, left("near"), 60)
	require.Negative(t, left("gone"), "nothing is revived")
	require.LessOrEqual(t, left("other"), 60.0)

	n, at2, err := b.store.RenewLease(t.Context(), "w", -5)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, at, at2, "never shortened")

	b.exec(`DELETE FROM queen.log_consumers WHERE consumer_group = 'near'`)
	_, at, err = b.store.RenewLease(t.Context(), "w", 1)
	require.NoError(t, err)
	require.Equal(t, "2100-01-02T03:04:05.678901Z", at)
	n, _, err = b.store.RenewLease(t.Context(), "x", math.MaxInt)
	require.NoError(t, err)
	require.Equal(t, 1, n)

	for _, worker := range []string{"unknown", ""} {
		n, at, err = b.store.RenewLease(t.Context(), worker, 60)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Empty(t, at)
	}
}
