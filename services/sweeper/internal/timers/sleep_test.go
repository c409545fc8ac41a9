package timers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

func TestTheSleepIsOneOfFourBands(t *testing.T) {
	t.Parallel()
	in := func(d time.Duration) *time.Duration { return &d }
	for name, tc := range map[string]struct {
		rest rest
		want time.Duration
	}{
		"work: the floor":                                {rest{work: true}, 5 * ms},
		"work wins over what is next":                    {rest{work: true, next: in(time.Hour)}, 5 * ms},
		"work under the least pressure":                  {rest{work: true, pressure: 1}, 10 * ms},
		"work under pressure, below the ceiling":         {rest{work: true, pressure: 7}, 640 * ms},
		"work under pressure, at the ceiling":            {rest{work: true, pressure: 8}, time.Second},
		"empty claim: the least jitter":                  {rest{missed: true, jitter: 25 * ms}, 25 * ms},
		"empty claim: the most jitter":                   {rest{missed: true, jitter: 200 * ms}, 200 * ms},
		"empty claim: between":                           {rest{missed: true, jitter: 99 * ms}, 99 * ms},
		"empty claim: below its band":                    {rest{missed: true, jitter: 24 * ms}, 25 * ms},
		"empty claim: above its band":                    {rest{missed: true, jitter: 201 * ms}, 200 * ms},
		"empty claim wins over what is next":             {rest{missed: true, jitter: 50 * ms, next: in(-time.Hour)}, 50 * ms},
		"empty claim under pressure":                     {rest{missed: true, jitter: 100 * ms, pressure: 2}, 400 * ms},
		"empty claim under pressure, at the ceiling":     {rest{missed: true, jitter: 200 * ms, pressure: 8}, time.Second},
		"next: overdue":                                  {rest{next: in(-time.Hour)}, 5 * ms},
		"next: now":                                      {rest{next: in(0)}, 5 * ms},
		"next: just below the floor":                     {rest{next: in(4 * ms)}, 5 * ms},
		"next: just above the floor":                     {rest{next: in(6 * ms)}, 6 * ms},
		"next: just below the ceiling":                   {rest{next: in(999 * ms)}, 999 * ms},
		"next: just above the ceiling":                   {rest{next: in(1001 * ms)}, time.Second},
		"next: in a year":                                {rest{next: in(365 * 24 * time.Hour)}, time.Second},
		"next under pressure":                            {rest{next: in(0), pressure: 3}, 40 * ms},
		"idle: the ceiling, however long there was none": {rest{}, time.Second},
		"idle under pressure":                            {rest{pressure: 8}, time.Second},
		"switched off":                                   {rest{off: true}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Defaults()
			require.Equal(t, tc.want, cfg.sleep(tc.rest))
		})
	}
}

func TestNoBandReachesBeyondTheCeiling(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.MaxSleep = 10 * ms
	require.Equal(t, 10*ms, cfg.sleep(rest{missed: true, jitter: 200 * ms}))
	require.Equal(t, 10*ms, cfg.least(rest{missed: true, jitter: 200 * ms}))
	require.Equal(t, 10*ms, cfg.sleep(rest{work: true, pressure: 8}))
	require.Equal(t, 10*ms, cfg.least(rest{work: true, pressure: 8}))
}

func TestHintsDoNotMakeASpinOfTheLoop(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	require.Equal(t, 5*ms, cfg.least(rest{}))
	require.Equal(t, 5*ms, cfg.least(rest{work: true}))
	require.Equal(t, 25*ms, cfg.least(rest{missed: true, jitter: 150 * ms}))
	require.Equal(t, 80*ms, cfg.least(rest{pressure: 4}))
}

func TestOnlyNoTimersAtAllIsEmpty(t *testing.T) {
	t.Parallel()
	next := time.Hour
	require.True(t, rest{}.empty())
	require.False(t, rest{next: &next}.empty())
	require.False(t, rest{off: true}.empty(), "what a switched off fire leaves is there")
	require.False(t, rest{work: true}.empty())
	require.False(t, rest{missed: true}.empty())
}
