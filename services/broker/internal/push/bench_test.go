package push_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/push"
)

// nullStore accepts everything at once.
type nullStore struct{}

func (nullStore) PushBundle(_ context.Context, segments []store.PushSegment, _ store.LockWait) ([]store.PushVerdict, error) {
	verdicts := make([]store.PushVerdict, len(segments))
	for i := range verdicts {
		verdicts[i].Status = store.PushQueued
	}
	return verdicts, nil
}

func (nullStore) SegmentAt(context.Context, uuid.UUID, int64) (store.Segment, bool, error) {
	return store.Segment{}, false, nil
}

func (s nullStore) QueueSettings(context.Context, uuid.UUID, string) (store.QueueSettings, bool, error) {
	return store.QueueSettings{}, false, nil
}

func BenchmarkPush(b *testing.B) {
	const messages = 100
	for _, lanes := range []int{1, 64} {
		for _, ids := range []string{"minted", "given"} {
			b.Run(fmt.Sprintf("lanes=%d/ids=%s", lanes, ids), func(b *testing.B) {
				s := setupWith(b, push.Config{}, noop.Meter{}, nullStore{}, time.Minute)
				rng := rand.New(rand.NewPCG(1, 2))
				items := make([]wire.PushItem, messages)
				for i := range items {
					payload := []byte(`{"data":"`)
					for len(payload) < 254 {
						payload = append(payload, 'a'+byte(rng.IntN(26)))
					}
					items[i] = item("orders.eu", fmt.Sprint("account-", i%lanes), "", string(payload)+`"}`)
					if ids == "given" {
						items[i].TransactionID = uuid.NewString()
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					s.woken = s.woken[:0]
					rs, err := s.svc.Push(b.Context(), tenant, "", items)
					require.NoError(b, err)
					require.Equal(b, wire.StatusQueued, rs[messages-1].Status)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/messages, "ns/msg")
			})
		}
	}
}
