package giveway_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/worker/giveway"
)

const ms = time.Millisecond

// others tells whether sessions are at work, and counts how often it is asked.
type others struct {
	busy  bool
	err   error
	looks int
}

func (o *others) atWork(context.Context) (bool, error) {
	o.looks++
	return o.busy, o.err
}

// in gives a test a way, by a clock of its own.
func in(t *testing.T, cfg giveway.Config, run func(t *testing.T, w *giveway.Way, o *others)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := &others{}
		run(t, giveway.New(cfg, o.atWork), o)
	})
}

// take is how long a rest lasts after a piece of work.
func take(t *testing.T, r *giveway.Rest, work time.Duration) time.Duration {
	t.Helper()
	r.Worked(work)
	began := time.Now()
	r.Take(t.Context())
	return time.Since(began)
}

var usual = giveway.Config{Look: 20 * ms, Piece: 20 * ms, Factor: 3, Most: time.Second, Memory: time.Second}

func TestNobodyRestsAlone(t *testing.T) {
	in(t, usual, func(t *testing.T, w *giveway.Way, o *others) {
		r := w.Rest()
		for range 100 {
			require.Zero(t, take(t, r, 10*ms))
		}
		require.Equal(t, 50, o.looks)
		require.False(t, w.Taken())
	})
}

func TestARestIsAsLongAsTheWorkCallsFor(t *testing.T) {
	in(t, usual, func(t *testing.T, w *giveway.Way, o *others) {
		o.busy = true
		r := w.Rest()
		require.Zero(t, take(t, r, 20*ms-1), "too little work to look")
		require.Zero(t, o.looks)
		require.Equal(t, 3*20*ms, take(t, r, 1))
		require.Equal(t, 1, o.looks)
		require.True(t, w.Taken())
		require.Zero(t, take(t, r, 19*ms), "what was rested for is not owed")
		require.Equal(t, 999*ms, take(t, r, 314*ms), "just below the most")
		require.Equal(t, time.Second, take(t, r, 334*ms))
		require.Equal(t, time.Second, take(t, r, time.Hour))
	})
}

func TestOthersAreRemembered(t *testing.T) {
	in(t, usual, func(t *testing.T, w *giveway.Way, o *others) {
		o.busy = true
		r := w.Rest()
		require.NotZero(t, take(t, r, 20*ms))
		o.busy = false
		time.Sleep(time.Second - 60*ms - 1)
		require.True(t, w.Taken())
		require.NotZero(t, take(t, w.Rest(), 20*ms), "by all rests, and although this look misses them")
		require.False(t, w.Taken())
		require.Zero(t, take(t, r, 20*ms))
	})
}

func TestPiecesAreShorterThanLooksAreApart(t *testing.T) {
	cfg := usual
	cfg.Piece = 0
	in(t, cfg, func(t *testing.T, w *giveway.Way, o *others) {
		o.busy = true
		r := w.Rest()
		for range 19 {
			require.Zero(t, take(t, r, ms), "nobody was met yet")
		}
		require.Equal(t, 60*ms, take(t, r, ms))
		for range 19 {
			require.Equal(t, 3*ms, take(t, r, ms), "each piece")
		}
		require.Equal(t, 1, o.looks)
		require.Equal(t, 3*ms, take(t, r, ms))
		require.Equal(t, 2, o.looks)
	})
}

func TestWorkOfBeforeOthersCameIsNotOwed(t *testing.T) {
	cfg := usual
	cfg.Piece = 0
	in(t, cfg, func(t *testing.T, w *giveway.Way, o *others) {
		r := w.Rest()
		require.Zero(t, take(t, r, 300*ms))
		o.busy = true
		require.Equal(t, 60*ms, take(t, r, 20*ms))
	})
}

func TestWhoCannotLookGoesOn(t *testing.T) {
	in(t, usual, func(t *testing.T, w *giveway.Way, o *others) {
		o.busy, o.err = true, errors.New("connection lost")
		require.Zero(t, take(t, w.Rest(), time.Hour))
		require.False(t, w.Taken())
	})
}

func TestARestEndsWithItsContext(t *testing.T) {
	in(t, usual, func(t *testing.T, w *giveway.Way, o *others) {
		o.busy = true
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		r := w.Rest()
		r.Worked(20 * ms)
		began := time.Now()
		r.Take(ctx)
		require.Equal(t, 10*ms, time.Since(began))
	})
}
