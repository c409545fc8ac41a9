package retry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

func sqlState(code string) error {
	return fmt.Errorf("ack: %w", &pgconn.PgError{Severity: "ERROR", Code: code, Message: "m"})
}

func TestDefinite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"serialization failure":   {sqlState("40001"), true},
		"deadlock":                {sqlState("40P01"), true},
		"lock not available":      {sqlState("55P03"), true},
		"function being replaced": {sqlState("42883"), true},
		"no connection":           {fmt.Errorf("ack: %w", pgdb.ErrPool), true},
		"lost answer":             {fmt.Errorf("ack: %w", context.DeadlineExceeded), false},
		"refused by a procedure":  {sqlState("P0001"), false},
		"unique violation":        {sqlState("23505"), false},
		"anything else":           {errors.New("x"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, retry.Definite(c.err))
		})
	}
}

func TestReadRepeatsAfterALostAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			err   error
			calls int
		}{
			"no answer in time":      {context.DeadlineExceeded, 2},
			"session ended":          {sqlState("57P01"), 2},
			"refused by a procedure": {sqlState("P0001"), 1},
		} {
			calls := 0
			err := retry.Read(t.Context(), time.Now().Add(time.Second), func(context.Context) error {
				if calls++; calls == 1 {
					return c.err
				}
				return nil
			})
			require.Equal(t, c.calls, calls, name)
			require.Equal(t, c.calls == 1, err != nil, name)
		}
	})
}

func TestDoRepeatsUntilItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		err := retry.Do(t.Context(), time.Now().Add(10*time.Second), func(context.Context) error {
			if calls++; calls < 8 {
				return sqlState("40001")
			}
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 8, calls)
	})
}

func TestDoEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		cancel bool
		within time.Duration
	}{
		"at the deadline":        {sqlState("40001"), false, 2 * time.Second},
		"at an error that stays": {sqlState("P0001"), false, 0},
		"when its context ends":  {sqlState("40001"), true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				start := time.Now()
				err := retry.Do(ctx, start.Add(2*time.Second), func(context.Context) error {
					if c.cancel {
						cancel()
					}
					return c.err
				})
				require.ErrorIs(t, err, c.err)
				require.LessOrEqual(t, time.Since(start), c.within)
			})
		})
	}
}

func TestPausesGrowToTheirBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		never := time.Now().Add(time.Hour)
		for attempt := range 70 {
			start := time.Now()
			require.True(t, retry.Pause(t.Context(), attempt, never))
			want := min(retry.FirstPause<<min(attempt, 20), retry.LastPause)
			require.GreaterOrEqual(t, time.Since(start), want/2)
			require.LessOrEqual(t, time.Since(start), want)
		}
	})
}
