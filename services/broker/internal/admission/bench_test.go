package admission_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/services/broker/internal/admission"
)

// A slot is taken for every transaction, so taking one must cost next to nothing.
func BenchmarkAcquire(b *testing.B) {
	g, err := admission.New(admission.Config{}, noop.Meter{})
	require.NoError(b, err)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			release, err := g.Acquire(b.Context(), admission.Push)
			if err != nil {
				b.Error(err)
				return
			}
			g.Commit()
			release()
		}
	})
}
