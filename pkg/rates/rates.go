package rates

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/queenmq/queen/pkg/config"
)

const (
	// EveryDefault is the usual time between two lines.
	EveryDefault = 10 * time.Second
	// EveryFloor is the least: a smaller value is raised to it.
	EveryFloor = time.Second
	everyMax   = 24 * time.Hour
)

// Config says how often a process tells what it did.
type Config struct {
	// Every is the time between two lines, at least EveryFloor.
	Every time.Duration `envconfig:"QUEEN_LOG_RATES_MS" default:"10000"`
}

// Validate checks the upper bound; what is below the floor is raised to it.
func (c Config) Validate() error {
	return config.MillisBetween("QUEEN_LOG_RATES_MS", c.Every, 0, everyMax)
}

// Sample is what the sources tell at one instant. A key names one total.
type Sample struct {
	totals []total
	states []slog.Attr
}

type total struct {
	key   string
	value int64
}

// Total adds a figure that only grows. The line has by how much it grew a second.
func (s *Sample) Total(key string, value int64) { s.totals = append(s.totals, total{key, value}) }

// State adds what is true now. By itself it is no reason for a line.
func (s *Sample) State(attrs ...slog.Attr) { s.states = append(s.states, attrs...) }

// Source adds to a sample.
type Source func(s *Sample)

// Reporter writes the lines. Its Run is a lifecycle component.
type Reporter struct {
	every   time.Duration
	log     *slog.Logger
	sources []Source
	details []func(ctx context.Context, elapsed time.Duration)
	at      time.Time
	last    map[string]int64
}

// New returns a Reporter of some sources.
func New(cfg Config, log *slog.Logger, sources ...Source) *Reporter {
	return &Reporter{every: max(cfg.Every, EveryFloor), log: log, sources: sources, last: map[string]int64{}}
}

// Detail has f called after each line. It may write lines of its own about the same
// interval.
func (r *Reporter) Detail(f func(ctx context.Context, elapsed time.Duration)) {
	r.details = append(r.details, f)
}

// Run writes lines until ctx ends, and what is left then.
func (r *Reporter) Run(ctx context.Context) error {
	r.at = time.Now()
	r.grown(r.sample())
	ticker := time.NewTicker(r.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			r.turn(context.WithoutCancel(ctx))
			return nil
		case <-ticker.C:
			r.turn(ctx)
		}
	}
}

func (r *Reporter) sample() *Sample {
	s := &Sample{}
	for _, source := range r.sources {
		source(s)
	}
	return s
}

// turn writes the line of an interval that has ended, if anything happened in it.
func (r *Reporter) turn(ctx context.Context) {
	s, now := r.sample(), time.Now()
	elapsed := now.Sub(r.at)
	r.at = now
	grown, any := r.grown(s)
	if !any || elapsed <= 0 {
		return
	}
	attrs := make([]slog.Attr, 0, len(grown)+len(s.states))
	for i, t := range s.totals {
		attrs = append(attrs, slog.Float64(t.key, PerSecond(grown[i], elapsed))) //nolint:sloglint // from Total, where it is a constant
	}
	r.log.LogAttrs(ctx, slog.LevelInfo, "rates", append(attrs, s.states...)...)
	for _, f := range r.details {
		f(ctx, elapsed)
	}
}

// grown is by how much each total of a sample has grown since the one before.
func (r *Reporter) grown(s *Sample) (grown []int64, any bool) {
	grown = make([]int64, len(s.totals))
	for i, t := range s.totals {
		grown[i] = t.value - r.last[t.key]
		any = any || grown[i] > 0
		r.last[t.key] = t.value
	}
	return grown, any
}

// PerSecond is a rate with two digits behind the point: enough to tell one event in
// a hundred seconds from none.
func PerSecond(n int64, elapsed time.Duration) float64 {
	return math.Ceil(float64(n)/elapsed.Seconds()*100) / 100
}
