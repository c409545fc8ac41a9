package kv_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/kv"
)

// BenchmarkCall compares a call through the service with the bare call of the store.
func BenchmarkCall(b *testing.B) {
	st := store.New(pgtest.New(b))
	s := newService(b, kv.Config{}, st, noQuotas{})
	for name, op := range map[string]string{
		"get":  aGet,
		"incr": `{"op":"incr","ns":"n","key":"c","delta":1,"forever":true}`,
	} {
		ops := json.RawMessage("[" + op + "]")
		for path, call := range map[string]func(context.Context) error{
			"store": func(ctx context.Context) error {
				_, err := st.KVApply(ctx, tenant, ops)
				return err
			},
			"service": func(ctx context.Context) error {
				_, err := s.Apply(ctx, tenant, ops)
				return err
			},
		} {
			b.Run(name+"/"+path, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, call(b.Context()))
				}
			})
		}
	}
}

func BenchmarkInspect(b *testing.B) {
	for name, ops := range map[string]string{"one": repeat(aGet, 1), "25": repeat(aPut, 25)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(ops)))
			for b.Loop() {
				if _, err := kv.Inspect(json.RawMessage(ops), kv.DefaultLimits(), false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
