package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// newSweeper prepares a sweeper with its usual settings.
func (s *stack) newSweeper(ctx context.Context, i int, more []string) (*service, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	own := []string{"QUEEN_OPS_ADDR=127.0.0.1:" + strconv.Itoa(port), "LOG_LEVEL=warn", "QUEEN_LOG_JSON=true"}
	return s.newService("sweeper", i, port, append(own, more...))
}

// showComplaints shows what the sweepers were not content with.
func (s *stack) showComplaints() error {
	var problems []error
	for _, v := range s.sweepers {
		problems = append(problems, v.showComplaints())
	}
	return errors.Join(problems...)
}

// Series of a sweeper.
const (
	seriesProbes     = "queen_sweeper_probes_total"
	seriesCycles     = "queen_sweeper_cycle_duration_seconds_count"
	seriesCycleTime  = "queen_sweeper_cycle_duration_seconds_sum"
	seriesCycleQuick = `queen_sweeper_cycle_duration_seconds_bucket{le="0.02"}`
	seriesEmpty      = "queen_sweeper_empty_claims_total"
	seriesFired      = `queen_timers_fired_total{result="fired"}`
	seriesStale      = `queen_timers_fired_total{result="stale"}`
)

// series are the metrics of a service at one instant.
type series map[string]float64

// metrics reads those of a service.
func (v *service) metrics(ctx context.Context) (series, error) {
	c := &conn{addr: v.addr}
	defer c.close()
	request := newRequest(http.MethodGet, "/metrics", "")
	a, err := c.do(ctx, request)
	if err == nil && a.status != http.StatusOK {
		err = unexpected(request, a)
	}
	if err != nil {
		return nil, fmt.Errorf("metrics of the %s: %w", v.name, err)
	}
	return parseSeries(string(a.body)), nil
}

// parseSeries reads lines of a name, with its labels, and a value.
func parseSeries(text string) series {
	out := series{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			out[line[:at]] = v
		}
	}
	return out
}

// since is by how much a series has grown. One that is missing is an error: the row
// would measure nothing.
func (m series) since(before series, name string) (float64, error) {
	now, ok := m[name]
	if !ok {
		return 0, fmt.Errorf("no series %s", name)
	}
	return now - before[name], nil
}

// sweeperMetrics are those of every sweeper, empty for one that does not run.
func (s *stack) sweeperMetrics(ctx context.Context) ([]series, error) {
	all := make([]series, len(s.sweepers))
	for i, v := range s.sweepers {
		if !v.running() {
			continue
		}
		var err error
		if all[i], err = v.metrics(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// growth is by how much a series has grown in each sweeper that runs.
func growth(before, after []series, name string) ([]float64, error) {
	var each []float64
	for i := range after {
		if after[i] == nil {
			continue
		}
		v, err := after[i].since(before[i], name)
		if err != nil {
			return nil, err
		}
		each = append(each, v)
	}
	return each, nil
}

// firedLook is how often sweepers are asked how far they are.
const firedLook = 100 * time.Millisecond

// awaitFired waits until the sweepers have fired n timers since before.
func (s *stack) awaitFired(ctx context.Context, before []series, n int) error {
	deadline := time.Now().Add(patience)
	for {
		now, err := s.sweeperMetrics(ctx)
		if err != nil {
			return err
		}
		fired, err := growth(before, now, seriesFired)
		if err != nil {
			return err
		}
		switch total := sum(fired); {
		case total >= float64(n):
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%.0f of %d timers were fired after %s", total, n, patience)
		case !waitUntil(ctx, time.Now().Add(firedLook)):
			return ctx.Err()
		}
	}
}

func sum(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total
}
