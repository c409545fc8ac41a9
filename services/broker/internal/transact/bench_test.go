package transact_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// kind is a store that carries everything out at once and remembers nothing.
type kind struct {
	*fakeStore
	out store.TransactionResult
}

func (k kind) Transaction(context.Context, store.Transaction) (store.TransactionResult, error) {
	return k.out, nil
}

// What a bundle of a push and an ack costs beside its commit.
func BenchmarkBundleWithoutRiders(b *testing.B) {
	s := setup(b)
	s.svc.Store = kind{s.store, store.TransactionResult{Pushes: make([]store.PushVerdict, 1), Acks: []store.AckOutcome{{OK: true}}}}
	req := wire.TxRequest{
		Ops:            []wire.TxOp{pushOp("q", "p", "", `{"n":1}`), ackOp("a", pid1, wire.AckCompleted, "")},
		RequiredLeases: []string{"l"},
	}
	b.ReportAllocs()
	for b.Loop() {
		resp, err := s.svc.Run(context.Background(), tenant, "", req)
		require.NoError(b, err)
		require.True(b, resp.Success)
		s.woken = s.woken[:0]
	}
}
