package httpapi_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
	"github.com/queenmq/queen/services/broker/internal/kv"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

// benchKeys is how many keys the operations of the benchmark fall on.
const benchKeys = 100_000

// mixed is a call of a mix of 30 reads, 60 increments and 10 conditional writes, each
// on another key.
func mixed(size int) string {
	first := rand.IntN(benchKeys)
	ops := make([]string, size)
	for i := range ops {
		ops[i] = mixedOne((first + i*benchKeys/size) % benchKeys)
	}
	return "[" + strings.Join(ops, ",") + "]"
}

func mixedOne(key int) string {
	switch n := rand.IntN(10); {
	case n < 3:
		return fmt.Sprintf(`{"op":"get","ns":"bench","key":"c%d"}`, key)
	case n < 9:
		return fmt.Sprintf(`{"op":"incr","ns":"bench","key":"c%d","delta":1,"forever":true}`, key)
	default:
		return fmt.Sprintf(`{"op":"putIfAbsent","ns":"bench","key":"p%d","value":{"a":1},"forever":true}`, key)
	}
}

// BenchmarkBatch sends operations over HTTP from 32 clients, alone and 25 in a call,
// without rate limits.
func BenchmarkBatch(b *testing.B) {
	cfg := pgtest.NewConfig(b)
	cfg.PoolSize = 16
	db, err := pgdb.Open(b.Context(), cfg)
	require.NoError(b, err)
	b.Cleanup(db.Close)
	gate, err := quota.New(quota.Config{}, quota.Deps{Store: store.New(db), Meter: noop.Meter{}, Logger: logtest.New(b)})
	require.NoError(b, err)
	keys, err := kv.New(kv.Config{}, kv.Deps{Store: store.New(db), Gate: gate, Meter: noop.Meter{}})
	require.NoError(b, err)
	s := start(b, httpapi.Config{MaxBodyBytes: 1 << 20, MaxInflightBytes: 64 << 20}, func(d *httpapi.Deps) { d.Keys = keys })
	const clients = 32
	s.client.Transport = &http.Transport{MaxIdleConnsPerHost: clients}
	for _, size := range []int{1, 25} {
		b.Run(fmt.Sprintf("of %d", size), func(b *testing.B) {
			var failed atomic.Int64
			b.SetParallelism(max(1, clients/runtime.GOMAXPROCS(0)))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if !send(b, s, mixed(size)) {
						failed.Add(1)
					}
				}
			})
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "ops/s")
			require.Zero(b, failed.Load())
		})
	}
}

func send(b *testing.B, s *bundle, body string) bool {
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://"+s.addr+batch, strings.NewReader(body))
	if err != nil {
		return false
	}
	res, err := s.client.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = res.Body.Close() }()
	_, err = io.Copy(io.Discard, res.Body)
	return err == nil && res.StatusCode == http.StatusOK
}
