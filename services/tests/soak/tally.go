package soak

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Verdict is what came of a run.
type Verdict struct {
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"`

	Pushed       int64 `json:"pushed"`       // stored, by an answer
	Delivered    int64 `json:"delivered"`    // of all groups, each message once
	Acknowledged int64 `json:"acknowledged"` // of all groups
	Rest         int64 `json:"rest"`         // stored and not yet acknowledged

	Lost        int64 `json:"lost"`        // stored and never delivered to a group
	OutOfOrder  int64 `json:"outOfOrder"`  // deliveries that are no continuation
	Duplicates  int64 `json:"duplicates"`  // delivered again although no lease had ended
	Redelivered int64 `json:"redelivered"` // delivered again as leases allow
	Reclaimed   int64 `json:"reclaimed"`   // messages of a second or later lease, by what brokers say: also those of which no delivery arrived
	Unanswered  int64 `json:"unanswered"`  // requests that were given up

	Timers   Timers   `json:"timers"`
	Counters Counters `json:"counters"`

	// Answers are counted by what was asked for and status, Errors by what was asked
	// for and kind: what there is instead of an answer. Both include what was repeated.
	Answers map[string]map[string]int64 `json:"answers"`
	Errors  map[string]map[string]int64 `json:"errors"`
	// Deferred is what brokers asked to repeat, and why.
	Deferred map[string]int64 `json:"deferred"`
	// Unexpected is what clients do not repeat by themselves.
	Unexpected map[string]int64 `json:"unexpected"`
	// SlowestMS is the longest time from the first attempt to the answer.
	SlowestMS map[string]int64 `json:"slowestMs"`
	// Incidents are the first errors in words, Problems the first that are held against
	// the installation.
	Incidents []string `json:"incidents"`
	Problems  []string `json:"problems"`
}

// Timers is what came of the scheduled messages. They are judged as the others are.
type Timers struct {
	Scheduled int64 `json:"scheduled"`
	Delivered int64 `json:"delivered"`
}

// Counters is what came of the increments of one key.
type Counters struct {
	Answered int64 `json:"answered"`
	Unknown  int64 `json:"unknown"` // sent and not answered
	Value    int64 `json:"value"`
}

// maxProblems are told in words.
const maxProblems = 20

// tally counts while a run is under way.
type tally struct {
	pushed, delivered, acknowledged    atomic.Int64
	lost, outOfOrder                   atomic.Int64
	duplicates, redelivered, reclaimed atomic.Int64
	unanswered                         atomic.Int64
	scheduled, fired, done             atomic.Int64 // timers
	incremented, unknown, value        atomic.Int64

	mu         sync.Mutex
	answers    map[string]map[string]int64
	errors     map[string]map[string]int64
	unexpected map[string]int64
	later      map[string]int64
	slowest    map[string]int64
	incidents  []string
	problems   []string
	began      time.Time
}

func newTally() *tally {
	return &tally{
		answers: map[string]map[string]int64{}, errors: map[string]map[string]int64{},
		unexpected: map[string]int64{}, later: map[string]int64{}, slowest: map[string]int64{}, incidents: []string{}, problems: []string{}, began: time.Now(),
	}
}

func count(m map[string]map[string]int64, what, kind string) {
	if m[what] == nil {
		m[what] = map[string]int64{}
	}
	m[what][kind]++
}

func (t *tally) answered(what string, status int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	count(t.answers, what, fmt.Sprint(status))
}

func (t *tally) failed(what, kind string, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	count(t.errors, what, kind)
	if len(t.incidents) < maxProblems {
		t.incidents = append(t.incidents, fmt.Sprintf("%6.2fs %s %s: ", time.Since(t.began).Seconds(), what, kind)+fmt.Sprintf(format, args...))
	}
}

func (t *tally) deferred(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.later[why]++
}

func (t *tally) took(what string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slowest[what] = max(t.slowest[what], d.Milliseconds())
}

// surprised notes something that clients do not repeat by themselves.
func (t *tally) surprised(what, format string, args ...any) {
	t.mu.Lock()
	t.unexpected[what]++
	t.mu.Unlock()
	t.problem(what+": "+format, args...)
}

func (t *tally) missed(n int, format string, args ...any) { t.wrong(&t.lost, n, format, args...) }

func (t *tally) disordered(n int, format string, args ...any) {
	t.wrong(&t.outOfOrder, n, format, args...)
}

func (t *tally) duplicated(n int, format string, args ...any) {
	t.wrong(&t.duplicates, n, format, args...)
}

func (t *tally) wrong(counter *atomic.Int64, n int, format string, args ...any) {
	counter.Add(int64(n))
	t.problem(format, args...)
}

func (t *tally) problem(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.problems) < maxProblems {
		t.problems = append(t.problems, fmt.Sprintf(format, args...))
	}
}

// verdict is what the counters say.
func (t *tally) verdict() Verdict {
	v := Verdict{
		Pushed: t.pushed.Load(), Delivered: t.delivered.Load(), Acknowledged: t.acknowledged.Load(),
		Lost: t.lost.Load(), OutOfOrder: t.outOfOrder.Load(), Duplicates: t.duplicates.Load(),
		Redelivered: t.redelivered.Load(), Reclaimed: t.reclaimed.Load(), Unanswered: t.unanswered.Load(),
		Timers:   Timers{Scheduled: t.scheduled.Load(), Delivered: t.fired.Load()},
		Counters: Counters{Answered: t.incremented.Load(), Unknown: t.unknown.Load(), Value: t.value.Load()},
		Answers:  map[string]map[string]int64{}, Errors: map[string]map[string]int64{},
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for what, m := range t.answers {
		v.Answers[what] = maps.Clone(m)
	}
	for what, m := range t.errors {
		v.Errors[what] = maps.Clone(m)
	}
	v.Unexpected, v.Deferred, v.SlowestMS = maps.Clone(t.unexpected), maps.Clone(t.later), maps.Clone(t.slowest)
	v.Incidents = append([]string{}, t.incidents...)
	v.Problems = append([]string{}, t.problems...)
	v.OK = v.Lost == 0 && v.OutOfOrder == 0 && v.Duplicates == 0 && v.Unanswered == 0 && len(v.Unexpected) == 0
	return v
}
