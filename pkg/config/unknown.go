package config

import (
	"context"
	"log/slog"
	"regexp"
	"sort"
	"strings"

	"github.com/queenmq/queen/pkg/logging"
)

// Unknown is a set variable that nothing reads.
type Unknown struct {
	Name string
	Hint string // name of the nearest known variable, or empty
}

// maxHintDistance is how many letters may differ for a hint.
const maxHintDistance = 3

const serviceLinks = `_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?$`

// FindUnknown lists the variables of environ (os.Environ()) whose names begin
// with prefix and that no spec reads.
func FindUnknown(environ []string, prefix string, specs ...any) []Unknown {
	known := map[string]bool{}
	for _, spec := range specs {
		for _, f := range fieldsOf(spec) {
			known[f.name] = true
			for _, a := range f.aliases {
				known[a] = true
			}
		}
	}
	links := regexp.MustCompile(serviceLinks)
	var unknown []Unknown
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, prefix) && !known[name] && !isServiceLink(links, name, value) {
			unknown = append(unknown, Unknown{Name: name, Hint: nearest(name, known)})
		}
	}
	sort.Slice(unknown, func(i, j int) bool { return unknown[i].Name < unknown[j].Name })
	return unknown
}

// testPrefix is of the variables of the test suites, which share the prefix.
const testPrefix = "QUEEN_TEST_"

// WarnUnknown logs the variables of environ that look like ours and that no spec
// reads: misspelt ones, and those of features that this version does not have.
func WarnUnknown(ctx context.Context, log *slog.Logger, environ []string, specs ...any) {
	for _, u := range FindUnknown(environ, "QUEEN_", specs...) {
		if strings.HasPrefix(u.Name, testPrefix) {
			continue
		}
		attrs := []slog.Attr{slog.String(logging.KeyVariable, u.Name)}
		if u.Hint != "" {
			attrs = append(attrs, slog.String(logging.KeyDidYouMean, u.Hint))
		}
		log.LogAttrs(ctx, slog.LevelWarn, "environment variable is not read", attrs...)
	}
}

// isServiceLink recognises the variables that Kubernetes puts into every
// container for each Service of the namespace, such as QUEEN_PORT_6632_TCP for
// a Service named queen. Nobody wrote them, so nobody misspelt them.
func isServiceLink(links *regexp.Regexp, name, value string) bool {
	return links.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}

func nearest(name string, known map[string]bool) string {
	best, hint := maxHintDistance+1, ""
	for candidate := range known {
		d := distance(name, candidate)
		if d < best || d == best && candidate < hint {
			best, hint = d, candidate
		}
	}
	if best > maxHintDistance {
		return ""
	}
	return hint
}

// distance counts the single-letter edits between two names (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
