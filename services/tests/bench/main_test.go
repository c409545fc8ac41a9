package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tinyScale only shows that the rows work.
var tinyScale = scale{
	Block: 300 * time.Millisecond, Warmup: 100 * time.Millisecond, Rounds: 1, Blocks: 1, Lanes: 300,
	Parked: 50, History: 6400, Hops: 5, Segment: 200, Slower: 5,
	Poll: 200 * time.Millisecond, Look: 50 * time.Millisecond, Quiet: 15 * time.Second,
	Many: 300, Stale: 8000, Step: 5, Sweep: 500 * time.Millisecond, Cycles: 2, Waiting: 2, MaxWait: time.Second,
	Rest: 200 * time.Millisecond, Rested: 2, Timers: 2000, Later: 2000, Keys: 1000,
	Queues: 5, Shown: 100, Asks: 2,
}

// The rows run against a real broker, so that they do not rot. Whether targets
// are met says nothing at this scale.
func TestEveryRowRuns(t *testing.T) {
	t.Parallel()
	for _, table := range tables {
		t.Run(table, func(t *testing.T) {
			t.Parallel() // each has a server of its own, and mostly waits
			everyRowRuns(t, table)
		})
	}
}

func everyRowRuns(t *testing.T, table string) {
	o, err := parseOptions([]string{"-table", table, "-groups", "2", "-lanes", "4", "-batch", "3"})
	require.NoError(t, err)
	o.scale, o.fast = tinyScale, true
	b, err := newBench(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(b.lab.stop)
	require.Contains(t, b.lab.server, "fsync off")
	for _, r := range rows(o) {
		t.Run(r.name, func(t *testing.T) {
			out := b.runRow(t.Context(), r)
			require.Empty(t, out.Error)
			require.Zero(t, out.Failures)
			// A figure may have no value: on a busy machine a block of this length
			// can pass without a message.
			targets := 0
			for _, f := range out.Figures {
				if f.Want.Sense != "" {
					targets++
				}
			}
			require.True(t, targets > 0 || r.extra, "a row of the table has a target")
			t.Log(out.lines())
		})
	}
}

func TestChooseKeepsTheOrderOfTheTable(t *testing.T) {
	t.Parallel()
	all := []row{{name: "a"}, {name: "b", extra: true}, {name: "c"}}
	names := func(rows []row) (list []string) {
		for _, r := range rows {
			list = append(list, r.name)
		}
		return list
	}
	got, err := choose(all, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "c"}, names(got), "extra rows run only when named")
	got, err = choose(all, []string{"c", "b"})
	require.NoError(t, err)
	require.Equal(t, []string{"b", "c"}, names(got))
	_, err = choose(all, []string{"c", "x", "y"})
	require.ErrorContains(t, err, "x")
	require.ErrorContains(t, err, "y")
}

func TestOptions(t *testing.T) {
	t.Parallel()
	o, err := parseOptions([]string{"-quick", "-only", "w1,w4", "-duration", "2s"})
	require.NoError(t, err)
	require.Equal(t, []string{"w1", "w4"}, o.only)
	require.Equal(t, 2*time.Second, o.scale.Block)
	require.Equal(t, quickScale.Rounds, o.scale.Rounds)
	require.Equal(t, quickScale.Warmup, o.scale.Warmup)

	_, err = parseOptions([]string{"-table", "x", "-rounds", "0", "-lanes", "0", "-bytes", "10"})
	require.ErrorContains(t, err, "-table x")
	require.ErrorContains(t, err, "-rounds 0")
	require.ErrorContains(t, err, "-lanes 0")
	require.ErrorContains(t, err, "-bytes 10")
	_, err = parseOptions([]string{"-h"})
	require.ErrorIs(t, err, errHelp)
}
