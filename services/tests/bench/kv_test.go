package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCallsOfKeys(t *testing.T) {
	t.Parallel()
	load := &kvLoad{ns: "n", keys: 1000, ops: 25}
	rng := newRand(1)
	kinds := map[string]int{}
	for range 200 {
		body, want := load.appendCall(nil, rng)
		var call struct {
			Operations []struct {
				Op, Ns, Key string
				Delta       int
				Forever     bool
				Value       any
			}
		}
		require.NoError(t, json.Unmarshal(body, &call))
		require.Len(t, call.Operations, 25)
		keys, got := map[string]bool{}, kvCounts{}
		for _, op := range call.Operations {
			require.Equal(t, "n", op.Ns)
			require.False(t, keys[op.Key], "a key is written once in a call")
			keys[op.Key] = true
			kinds[op.Op]++
			switch op.Op {
			case "get":
				got.gets++
			case "incr":
				got.incrs++
				require.Equal(t, 1, op.Delta)
				require.True(t, op.Forever)
			case "putIfAbsent":
				got.puts++
				require.Equal(t, true, op.Value)
				require.True(t, op.Forever)
			}
		}
		require.Equal(t, want, got)
	}
	require.Len(t, kinds, 3)
	require.InDelta(t, 0.3, float64(kinds["get"])/5000, 0.03)
	require.InDelta(t, 0.6, float64(kinds["incr"])/5000, 0.03)
}

func TestAnswersToCallsOfKeys(t *testing.T) {
	t.Parallel()
	asked := kvCounts{gets: 1, incrs: 1, puts: 2}
	get, applied, late := `{"found": true}`, `{"applied": true}`, `{"applied": false, "reason": "exists"}`
	for body, good := range map[string]bool{
		get + applied + applied + applied:                         true,
		get + applied + late + late:                               true,
		get + late + late + late:                                  false, // the increment was not applied
		applied + applied + applied:                               false,
		get + applied + applied:                                   false,
		`{"found": false}` + applied + late + late:                false,
		get + applied + late + `{"applied": false, "reason": ""}`: false,
	} {
		require.Equal(t, good, countResults([]byte(body)).answers(asked), body)
	}
}

func TestSummaryOfPgbench(t *testing.T) {
	t.Parallel()
	text := `transaction type: multiple scripts
number of transactions actually processed: 30000
number of failed transactions: 2 (0.007%)
latency average = 3.1 ms
initial connection time = 40.1 ms
tps = 10000.000000 (without initial connection time)
SQL script 1: get.sql
 - 9000 transactions (30.0% of total, tps = 3000.000000)
`
	got, err := parsePgbench([]byte(text))
	require.NoError(t, err)
	require.Equal(t, block{pushed: 30000, elapsed: 3 * time.Second, failures: 2}, got)
	_, err = parsePgbench([]byte("pgbench: error: no such table"))
	require.ErrorContains(t, err, "no such table")
}
