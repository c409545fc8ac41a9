package httpapi

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

// ask reads one parameter x, and what is wrong with it.
func ask[T any](t *testing.T, query string, read func(p *params) T) (T, string) {
	t.Helper()
	values, err := url.ParseQuery(query)
	require.NoError(t, err)
	p := &params{values: values}
	value := read(p)
	if p.err == nil {
		return value, ""
	}
	return value, p.err.Error()
}

func TestNumbersOfTheQuery(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]int{"": 7, "x=": 7, "x=%20": 7, "y=9": 7, "x=2": 2, "x=+9": 9, "x=09": 9} {
		got, fault := ask(t, query, func(p *params) int { return p.number("x", 7, 2, 9) })
		require.Equal(t, want, got, query)
		require.Empty(t, fault, query)
	}
	for _, query := range []string{"x=1", "x=10", "x=-3", "x=1.5", "x=2e0", "x=two", "x=0x3", "x=99999999999999999999"} {
		_, fault := ask(t, query, func(p *params) int { return p.number("x", 7, 2, 9) })
		require.Equal(t, "x must be a whole number from 2 to 9", fault, query)
	}
}

func TestPagesOfTheQuery(t *testing.T) {
	t.Parallel()
	for query, want := range map[string][2]int{"": {50, 0}, "limit=1000&offset=2147483647": {1000, 2147483647}, "limit=1": {1, 0}} {
		got, fault := ask(t, query, func(p *params) [2]int {
			limit, offset := p.page(50)
			return [2]int{limit, offset}
		})
		require.Equal(t, want, got, query)
		require.Empty(t, fault, query)
	}
	for query, want := range map[string]string{
		"limit=0":           "limit must be a whole number from 1 to 1000",
		"limit=1001":        "limit must be a whole number from 1 to 1000",
		"offset=-1":         "offset must be a whole number from 0 to 2147483647",
		"offset=2147483648": "offset must be a whole number from 0 to 2147483647",
		"limit=a&offset=b":  "limit must be a whole number from 1 to 1000",
	} {
		_, fault := ask(t, query, func(p *params) int {
			limit, _ := p.page(50)
			return limit
		})
		require.Equal(t, want, fault, query)
	}
}

func TestFlagsOfTheQuery(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]bool{
		"x=true": true, "x=1": true, "x=yes": true, "x=YES": true, "x=True": true,
		"x=false": false, "x=0": false, "x=no": false, "": true, "x=": true,
	} {
		got, fault := ask(t, query, func(p *params) bool { return p.flag("x", true) })
		require.Equal(t, want, got, query)
		require.Empty(t, fault, query)
	}
	got, _ := ask(t, "", func(p *params) bool { return p.flag("x", false) })
	require.False(t, got)
	for _, query := range []string{"x=2", "x=on", "x=t", "x=-"} {
		_, fault := ask(t, query, func(p *params) bool { return p.flag("x", true) })
		require.Equal(t, "x must be true or false, 1 or 0, yes or no", fault, query)
	}
}

func TestChoicesOfTheQuery(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{"": "hour", "x=": "hour", "x=day": "day"} {
		got, fault := ask(t, query, func(p *params) string { return p.choice("x", "hour", "day") })
		require.Equal(t, want, got, query)
		require.Empty(t, fault, query)
	}
	_, fault := ask(t, "x=week", func(p *params) string { return p.choice("x", "hour", "day") })
	require.Equal(t, "x must be one of hour, day", fault)
}

func TestInstantsOfTheQuery(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	for query, want := range map[string]time.Time{
		"": {}, "x=": {}, "x=2026-03-01T08:00:00Z": at, "x=2026-03-01T09:00:00%2B01:00": at, "x=2026-03-01T09:00:00+01:00": at,
		"x=2026-03-01T08:00": at, "x=2026-03-01T08:00:00.000": at, "x=2026-03-01": at.Add(-8 * time.Hour),
	} {
		got, fault := ask(t, query, func(p *params) time.Time { return p.instant("x") })
		require.Equal(t, want, got, query)
		require.Empty(t, fault, query)
	}
	for _, query := range []string{"x=yesterday", "x=2026-13-01", "x=1700000000", "x=08:00"} {
		_, fault := ask(t, query, func(p *params) time.Time { return p.instant("x") })
		require.Equal(t, "x must be an RFC 3339 instant", fault, query)
	}
}

func TestNamesOfTheQuery(t *testing.T) {
	t.Parallel()
	got, fault := ask(t, "x=a%2Fb+c", func(p *params) string { return p.name("x", wire.KindQueue) })
	require.Equal(t, "a/b c", got)
	require.Empty(t, fault)
	_, fault = ask(t, "x=a%00b", func(p *params) string { return p.name("x", wire.KindQueue) })
	require.Equal(t, "queue: holds a control character; letters, digits, blanks and punctuation are allowed", fault)
}

func TestMarksOfTheQuery(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{"": "", "after=": "", "after=1.a": "1.a"} {
		got, fault := ask(t, query, func(p *params) string { return p.after(0) })
		require.Equal(t, want, got, query)
		require.Empty(t, fault, query)
	}
	_, fault := ask(t, "", func(p *params) string { return p.after(7) })
	require.Empty(t, fault, "an offset alone")
	_, fault = ask(t, "after=1", func(p *params) string { return p.after(7) })
	require.Equal(t, "after and offset exclude each other", fault)
	_, fault = ask(t, "after=a%00", func(p *params) string { return p.after(0) })
	require.Equal(t, "after holds a NUL", fault)
}
