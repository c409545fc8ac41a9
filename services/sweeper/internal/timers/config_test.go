package timers

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/config"
)

func TestTheDefaultsAreThoseOfTheTags(t *testing.T) {
	t.Parallel()
	v := reflect.ValueOf(Defaults())
	for i := range v.NumField() {
		f := v.Type().Field(i)
		value := v.Field(i).Interface()
		if d, ok := value.(time.Duration); ok {
			value = d.Milliseconds()
		}
		require.Equal(t, f.Tag.Get("default"), fmt.Sprint(value), f.Name)
	}
	require.NoError(t, Defaults().Validate())
	require.Equal(t, Defaults(), Defaults().Raised())
}

func TestFloors(t *testing.T) {
	t.Parallel()
	require.Equal(t, Config{
		MinSleep: ms, MaxSleep: ms, IdleMaxSleep: ms, IdleAfterCycles: 1, EmptyClaimMin: ms, EmptyClaimMax: ms, Lease: 100 * ms,
		ClaimBatch: 1, CycleMaxRows: 1, DueCap: 1, MaxFireBytes: 1, Parallelism: 1, MaxAttempts: 1, BackoffMin: ms, BackoffMax: ms,
		TransientBackoff: ms, FireRatePerTenant: 1, ExpireEvery: ms, ExpireBatch: 1, UsageEvery: time.Second,
	}, Config{}.Raised())
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(c *Config)
		names  string // of the variable that is refused, or nothing
	}{
		"a floor above its ceiling":       {func(c *Config) { c.MinSleep = c.MaxSleep + ms }, "QUEEN_SWEEPER_MIN_SLEEP_MS"},
		"a floor at its ceiling":          {func(c *Config) { c.MinSleep = c.MaxSleep }, ""},
		"jitter that ends first":          {func(c *Config) { c.EmptyClaimMin = c.EmptyClaimMax + ms }, "QUEEN_SWEEPER_EMPTY_CLAIM_MIN_MS"},
		"jitter without a width":          {func(c *Config) { c.EmptyClaimMin = c.EmptyClaimMax }, ""},
		"backoff that ends first":         {func(c *Config) { c.BackoffMin = c.BackoffMax + ms }, "QUEEN_SWEEPER_BACKOFF_MIN_MS"},
		"backoff without a width":         {func(c *Config) { c.BackoffMin = c.BackoffMax }, ""},
		"the most fires":                  {func(c *Config) { c.Parallelism = ParallelismMax }, ""},
		"more fires":                      {func(c *Config) { c.Parallelism = ParallelismMax + 1 }, "QUEEN_SWEEPER_PARALLELISM"},
		"the largest fire":                {func(c *Config) { c.MaxFireBytes = fireBytesMax }, ""},
		"a larger fire":                   {func(c *Config) { c.MaxFireBytes = fireBytesMax + 1 }, "QUEEN_SWEEPER_MAX_FIRE_BYTES"},
		"the largest claim":               {func(c *Config) { c.ClaimBatch = rowsMax }, ""},
		"a larger claim":                  {func(c *Config) { c.ClaimBatch = rowsMax + 1 }, "QUEEN_SWEEPER_CLAIM_BATCH"},
		"the largest cycle":               {func(c *Config) { c.CycleMaxRows = rowsMax }, ""},
		"a larger cycle":                  {func(c *Config) { c.CycleMaxRows = rowsMax + 1 }, "QUEEN_SWEEPER_CYCLE_MAX_ROWS"},
		"the most attempts":               {func(c *Config) { c.MaxAttempts = attemptsMax }, ""},
		"more attempts":                   {func(c *Config) { c.MaxAttempts = attemptsMax + 1 }, "QUEEN_SWEEPER_MAX_ATTEMPTS"},
		"the longest lease":               {func(c *Config) { c.Lease = waitMax }, ""},
		"below the floors, and raised":    {func(c *Config) { c.Lease, c.UsageEvery = 0, 0 }, ""},
		"a longer lease":                  {func(c *Config) { c.Lease = waitMax + ms }, "QUEEN_SWEEPER_LEASE_MS"},
		"the longest sleep":               {func(c *Config) { c.MaxSleep, c.IdleMaxSleep = waitMax, waitMax }, ""},
		"a longer sleep":                  {func(c *Config) { c.MaxSleep = waitMax + ms }, "QUEEN_SWEEPER_MAX_SLEEP_MS"},
		"a sleep above the idle one":      {func(c *Config) { c.IdleMaxSleep = c.MaxSleep - ms }, "QUEEN_SWEEPER_MAX_SLEEP_MS"},
		"a sleep at the idle one":         {func(c *Config) { c.IdleMaxSleep = c.MaxSleep }, ""},
		"the longest idle sleep":          {func(c *Config) { c.IdleMaxSleep = waitMax }, ""},
		"a longer idle sleep":             {func(c *Config) { c.IdleMaxSleep = waitMax + ms }, "QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS"},
		"the longest jitter":              {func(c *Config) { c.EmptyClaimMax = waitMax }, ""},
		"longer jitter":                   {func(c *Config) { c.EmptyClaimMax = waitMax + ms }, "QUEEN_SWEEPER_EMPTY_CLAIM_MAX_MS"},
		"the longest backoff":             {func(c *Config) { c.BackoffMax = waitMax }, ""},
		"a longer backoff":                {func(c *Config) { c.BackoffMax = waitMax + ms }, "QUEEN_SWEEPER_BACKOFF_MAX_MS"},
		"the longest transient backoff":   {func(c *Config) { c.TransientBackoff = waitMax }, ""},
		"a longer transient backoff":      {func(c *Config) { c.TransientBackoff = waitMax + ms }, "QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS"},
		"the most cycles before idleness": {func(c *Config) { c.IdleAfterCycles = rowsMax }, ""},
		"more cycles before idleness":     {func(c *Config) { c.IdleAfterCycles = rowsMax + 1 }, "QUEEN_SWEEPER_IDLE_AFTER_CYCLES"},
		"the highest count":               {func(c *Config) { c.DueCap = rowsMax }, ""},
		"a higher count":                  {func(c *Config) { c.DueCap = rowsMax + 1 }, "QUEEN_SWEEPER_DUE_CAP"},
		"the largest share":               {func(c *Config) { c.FireRatePerTenant = rowsMax }, ""},
		"a larger share":                  {func(c *Config) { c.FireRatePerTenant = rowsMax + 1 }, "QUEEN_SWEEPER_FIRE_RATE_PER_TENANT"},
		"the rarest prune":                {func(c *Config) { c.ExpireEvery = waitMax }, ""},
		"a rarer prune":                   {func(c *Config) { c.ExpireEvery = waitMax + ms }, "QUEEN_KV_EXPIRE_EVERY_MS"},
		"the largest prune":               {func(c *Config) { c.ExpireBatch = rowsMax }, ""},
		"a larger prune":                  {func(c *Config) { c.ExpireBatch = rowsMax + 1 }, "QUEEN_KV_EXPIRE_BATCH"},
		"the rarest rollup":               {func(c *Config) { c.UsageEvery = waitMax }, ""},
		"a rarer rollup":                  {func(c *Config) { c.UsageEvery = waitMax + ms }, "QUEEN_KV_USAGE_EVERY_MS"},
		"nothing at all":                  {func(c *Config) { *c = Config{} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Defaults()
			tc.change(&c)
			err := c.Validate()
			if tc.names == "" {
				require.NoError(t, err)
				return
			}
			var problem *config.ValueError
			require.ErrorAs(t, err, &problem)
			require.Equal(t, tc.names, problem.Name)
		})
	}
}
