package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	t.Parallel()
	good := &outcome{Name: "good", Seconds: 61.2}
	good.add("ratio", "", []float64{0.7, 0.5, 0.6}, atLeast(0.6))
	good.tell("pushed", "msg/s", []float64{41234.5})
	bad := &outcome{Name: "bad", Failures: 3, Error: "push answered 500: no\nmore"}
	bad.add("p99", "ms", []float64{250}, under(250))
	bad.add("nothing", "ms", nil, under(250))
	r := &report{CPUs: 2, Server: "PostgreSQL 15", Scale: scale{Block: time.Second, Rounds: 3}, Rows: []*outcome{good, bad}}
	var out strings.Builder
	r.print(&out)
	require.Equal(t, `
PostgreSQL 15; 2 processors shared by PostgreSQL, brokers and driver
blocks of 1s, comparisons of 3 rounds; median and spread of the blocks; 1m1s in all

row   figure                        measured     min..max      target          
good  ratio                         0.600        0.500..0.700  at least 0.600  OK
      pushed                        41234 msg/s                                
bad   p99                           250 ms                     under 250       MISS
      nothing                       - ms                       under 250       MISS
      failed requests or messages   3                          none            MISS
      error: push answered 500: no                                             MISS

1 of 2 rows meet their targets; missed: bad

bad: push answered 500: no
more
`, out.String())
}

func TestTargets(t *testing.T) {
	t.Parallel()
	require.True(t, atLeast(1).met(1))
	require.False(t, atLeast(1).met(0.99))
	require.True(t, atMost(20).met(20))
	require.False(t, atMost(20).met(20.1))
	require.False(t, under(250).met(250))
	require.True(t, under(250).met(249.9))
	require.True(t, want{}.met(math.Inf(1)))

	require.False(t, (&outcome{}).ok(), "a row that measured nothing met nothing")
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
}

func TestRatiosGoRoundByRound(t *testing.T) {
	t.Parallel()
	at := func(n int64) block { return block{pushed: n, elapsed: time.Second} }
	a, b := []block{at(10), at(40), at(1)}, []block{at(20), at(40), at(0)}
	require.Equal(t, []float64{0.5, 1}, ratios(a, b, block.pushRate))
	require.Empty(t, each(a, block.pushP99), "nothing was measured")
}

func TestShort(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0.0123: "0.012", 0.5: "0.500", 1: "1.00", 9.876: "9.88", 15: "15", 15.26: "15.3", 250: "250", 41234.5: "41234",
	} {
		require.Equal(t, want, short(v))
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	o := &outcome{Name: "w", What: "what"}
	o.add("p99", "ms", []float64{1, 3}, under(250))
	r := &report{Rows: []*outcome{o}}
	path := filepath.Join(t.TempDir(), "new", "bench.json")
	require.NoError(t, r.writeJSON(path))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var doc struct{ Rows []json.RawMessage }
	require.NoError(t, json.Unmarshal(text, &doc))
	require.JSONEq(t, `{"name": "w", "what": "what", "seconds": 0, "failures": 0, "ok": true, "figures": [
		{"name": "p99", "unit": "ms", "values": [1, 3], "median": 2, "target": {"sense": "under", "limit": 250}, "ok": true}
	]}`, string(doc.Rows[0]))
}

func TestStat(t *testing.T) {
	t.Parallel()
	st := parseStat([]byte("42 (a (b) c) S 7 0 0 0 0 0 0 0 0 0 150 50 300 100 20 0\n"))
	require.Equal(t, procStat{parent: 7, own: 2, reaped: 4}, st)
	n, err := resident(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, n, 1e6)
}
