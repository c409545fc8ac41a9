package store_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// answerOf is what one of the two forms of an ack of completed messages answers.
func (b *bench) answerOf(call string, args ...any) map[string]any {
	b.t.Helper()
	var text []byte
	b.one([]any{&text}, call, args...)
	var answer map[string]any
	require.NoError(b.t, json.Unmarshal(text, &answer))
	for _, list := range []string{"noopHashes", "staleHashes", "unresolvedHashes"} {
		if l, ok := answer[list].([]any); ok && len(l) == 0 {
			delete(answer, list)
		}
	}
	return answer
}

// sameAck acks one batch, which ready makes for a group, in both forms.
func (b *bench) sameAck(pid uuid.UUID, worker string, ids []uint64, ready func(group string)) (answer map[string]any) {
	b.t.Helper()
	groups := [2]string{uuid.NewString(), uuid.NewString()}
	for _, g := range groups {
		ready(g)
	}
	var split [][]byte
	for _, id := range ids {
		split = append(split, hash(id))
	}
	want := b.answerOf(`SELECT queen.log_ack_by_hash_v1($1, $2, $3, $4, NULL)`, pid, groups[0], worker, split)
	got := b.answerOf(`SELECT queen.log_ack_completed_v1($1, $2, $3, $4)`, pid, groups[1], worker, slices.Concat(split...))
	require.Equal(b.t, want, got, "%v", ids)
	require.Equal(b.t, b.state(pid, groups[0]), b.state(pid, groups[1]), "%v", ids)
	return got
}

func TestAckOfCompletedMessagesIsThatByHash(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	leased := func(committed, end int64) func(string) {
		return func(g string) { b.leased(pid, g, "w", committed, end) }
	}
	expired := func(g string) {
		b.leased(pid, g, "w", 0, 4)
		b.expireLease(pid, g)
	}
	for name, c := range map[string]struct {
		worker string
		ids    []uint64
		ready  func(string)
	}{
		"whole batch":                      {"w", []uint64{1, 2, 3, 4}, leased(0, 4)},
		"whole batch, without its lease":   {"", []uint64{1, 2, 3, 4}, leased(0, 4)},
		"whole lane":                       {"w", []uint64{0, 1, 2, 3, 4, 5, 6, 7}, leased(-1, 7)},
		"one message":                      {"w", []uint64{4}, leased(3, 4)},
		"whole segment":                    {"w", []uint64{3, 4, 5}, leased(2, 5)},
		"another order":                    {"w", []uint64{1, 3, 2, 4}, leased(0, 4)},
		"without its first":                {"w", []uint64{2, 3, 4}, leased(0, 4)},
		"without its last":                 {"w", []uint64{1, 2, 3}, leased(0, 4)},
		"only its last":                    {"w", []uint64{4}, leased(0, 4)},
		"with one before it":               {"w", []uint64{0, 1, 2, 3, 4}, leased(0, 4)},
		"with one after it":                {"w", []uint64{1, 2, 3, 4, 5}, leased(0, 4)},
		"as many, one before it":           {"w", []uint64{0, 1, 2, 3}, leased(0, 4)},
		"as many, one unknown":             {"w", []uint64{1, 2, 99, 4}, leased(0, 4)},
		"another worker":                   {"x", []uint64{1, 2, 3, 4}, leased(0, 4)},
		"expired lease":                    {"w", []uint64{1, 2, 3, 4}, expired},
		"expired lease, without the lease": {"", []uint64{1, 2, 3, 4}, expired},
		"no lease":                         {"", []uint64{1, 2, 3, 4}, func(g string) { b.cursorAt(pid, g, 0) }},
		"no lease, but named":              {"w", []uint64{1, 2, 3, 4}, func(g string) { b.cursorAt(pid, g, 0) }},
		"nothing":                          {"w", nil, leased(0, 4)},
		"no cursor":                        {"w", []uint64{1, 2, 3, 4}, func(string) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "no cursor" {
				got := b.in(t).answerOf(`SELECT queen.log_ack_completed_v1($1, 'nobody', 'w', $2)`, pid, hash(1))
				require.Equal(t, map[string]any{"ok": false, "error": "consumer not found"}, got)
				return
			}
			b.in(t).sameAck(pid, c.worker, c.ids, c.ready)
		})
	}
	b.leased(pid, group, "w", 0, 4)
	got, err := b.store.AckByHash(t.Context(), pid, group, "w", hashes(1, 2, 3, 4), nil)
	require.NoError(t, err)
	require.Equal(t, store.AckOutcome{OK: true, Acked: 4, Offset: 4, Released: true}, got)
	require.Equal(t, finished(4, 14), b.state(pid, group))
}

func TestAckOfWhatIsLeftOfABatchCompletesIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.sameAck(pid, "w", []uint64{3, 4}, func(g string) {
		b.leased(pid, g, "w", 0, 4)
		b.exec(`UPDATE queen.log_consumers SET committed = 2 WHERE consumer_group = $1`, g)
	})
}

// Repeated ids say not which of them is meant: they go by the other form.
func TestAckOfRepeatedIDsGoesByHash(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO queen.queues (name, dedup_window_seconds) VALUES ('q', 0)`)
	pid := b.queued(segment("q", "p", 1, 2, 2)).PartitionID
	b.leased(pid, group, "w", -1, 2)
	got, err := b.store.AckByHash(t.Context(), pid, group, "w", hashes(1, 2, 2), nil)
	require.NoError(t, err)
	require.Equal(t, store.AckOutcome{OK: true, Acked: 2, Offset: 1}, got, "the first copy, as ever")
}

func TestAckOfABatchThatLostItsHashes(t *testing.T) {
	t.Parallel()
	for _, base := range []int64{0, 2, 3} {
		b := setup(t)
		pid := b.lane()
		b.exec(`DELETE FROM queen.log_txns WHERE base_offset = $1`, base)
		b.sameAck(pid, "w", []uint64{1, 2, 3, 4}, func(g string) { b.leased(pid, g, "w", 0, 4) })
		b.sameAck(pid, "w", []uint64{0, 1, 2, 3, 4, 5}, func(g string) { b.leased(pid, g, "w", -1, 5) })
		b.sameAck(pid, "w", []uint64{0, 1, 3, 4, 5, 6}, func(g string) { b.leased(pid, g, "w", -1, 5) })
	}
}

func TestRandomAcksOfCompletedMessages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	for range 60 {
		from := rand.Int64N(8) - 1
		end := from + 1 + rand.Int64N(7-from)
		var ids []uint64
		for id := from + 1; id <= end; id++ {
			ids = append(ids, uint64(id))
		}
		switch rand.IntN(4) {
		case 0:
			rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		case 1:
			at := rand.IntN(len(ids))
			ids = slices.Delete(ids, at, at+1)
		case 2:
			if other := uint64(rand.IntN(10)); !slices.Contains(ids, other) {
				ids[rand.IntN(len(ids))] = other
			}
		}
		b.sameAck(pid, "w", ids, func(g string) { b.leased(pid, g, "w", from, end) })
	}
}

// An ack that waited for the row judges what it finds then.
func TestAckOfACursorThatMovesMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		want   store.AckOutcome
		state  ackState
	}{
		"a part committed": {
			`UPDATE queen.log_consumers SET committed = 2`,
			store.AckOutcome{OK: true, Acked: 2, Offset: 4, Released: true, Noop: []int{0, 1}}, finished(4, 12),
		},
		"released":    {`UPDATE queen.log_consumers SET worker_id = NULL, batch_end = NULL`, store.AckOutcome{Error: "invalid or expired lease"}, free(0, 10, 1)},
		"another end": {`UPDATE queen.log_consumers SET batch_end = 3`, store.AckOutcome{OK: true, Acked: 3, Offset: 3, Released: true, Unresolved: []int{3}}, finished(3, 13)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			pid := b.lane()
			b.leased(pid, group, "w", 0, 4)
			held, changed, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			go func() {
				done <- b.db.Do(context.Background(), "change", func(ctx context.Context, conn *pgx.Conn) error {
					return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
						_, err := tx.Exec(ctx, c.change)
						close(held)
						<-changed
						return err
					})
				})
			}()
			<-held
			answer := make(chan store.AckOutcome)
			go func() {
				got, err := b.store.AckByHash(context.Background(), pid, group, "w", hashes(1, 2, 3, 4), nil)
				if err != nil {
					t.Error(err)
				}
				answer <- got
			}()
			b.waiting(1)
			close(changed)
			require.NoError(t, <-done)
			require.Equal(t, c.want, <-answer)
			require.Equal(t, c.state, b.state(pid, group))
		})
	}
}

// Also with the plan that was made while the lane held one row, the batch alone
// is read.
func TestAckOfCompletedMessagesReadsTheBatchAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 0)).PartitionID
	b.cursorAt(pid, group, -1)
	ack := func(upto int, ids ...uint64) func(context.Context, *pgx.Conn) error {
		return func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `UPDATE queen.log_consumers SET batch_end = $1`, upto)
			if err == nil {
				_, err = conn.Exec(ctx, `SELECT queen.log_ack_completed_v1($1, $2, '', $3)`, pid, group, slices.Concat(split(ids)...))
			}
			return err
		}
	}
	plans := plansOf(t, b, ack(0, 0), func(ctx context.Context, conn *pgx.Conn) error {
		b.exec(`INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
			SELECT $1, g * 3 - 2, g * 3, now(), decode(lpad(to_hex(g * 3 - 2), 32, '0') || lpad(to_hex(g * 3 - 1), 32, '0') || lpad(to_hex(g * 3), 32, '0'), 'hex')
			FROM generate_series(1, 2000) AS g`, pid)
		if _, err := conn.Exec(ctx, `UPDATE queen.log_consumers SET committed = 3000`); err != nil {
			return err
		}
		var ids []uint64
		for id := range uint64(30) {
			ids = append(ids, 3001+id)
		}
		return ack(3030, ids...)(ctx, conn)
	})
	match := planWith(t, plans[1], "string_agg")
	require.NotContains(t, match, "Seq Scan")
	require.Regexp(t, `on log_txns t .*actual rows=10 loops=1`, match, "nothing above the batch and nothing below it")
	require.EqualValues(t, 3030, b.state(pid, group).Committed)
}

func split(ids []uint64) [][]byte {
	list := make([][]byte, len(ids))
	for i, id := range ids {
		list[i] = hash(id)
	}
	return list
}
