package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/logtest"
)

// The variables of this struct exist only in these tests. envconfig reads the
// process environment, so the tests set it and cannot run in parallel.
type sample struct {
	Flag     bool          `envconfig:"QT_FLAG" default:"true"`
	Count    int           `envconfig:"QT_COUNT" default:"7"`
	Ratio    float64       `envconfig:"QT_RATIO" default:"0.5"`
	Wait     time.Duration `envconfig:"QT_WAIT_MS" default:"1500"`
	Name     string        `envconfig:"QT_NAME" default:"queen"`
	Database string        `envconfig:"QT_DATABASE" alias:"QT_DB" default:"postgres"`
	Mode     string        `envconfig:"QT_MODE" default:"all" allowed:"all,new"`
	Token    config.Secret `envconfig:"QT_TOKEN"`
	Nested   nested
}

type nested struct {
	Password string     `envconfig:"QT_PASSWORD" default:"hunter2"`
	Pin      int        `envconfig:"QT_PIN" default:"1" secret:"true"`
	Level    slog.Level `envconfig:"QT_LEVEL" default:"INFO"`
}

func (s *sample) Validate() error {
	return errors.Join(
		config.Between("QT_COUNT", s.Count, 1, 10),
		config.MillisBetween("QT_WAIT_MS", s.Wait, 0, time.Minute),
	)
}

func (n nested) Validate() error {
	if n.Password == "" {
		return &config.ValueError{Name: "QT_PASSWORD", Allowed: "any text but the empty one"}
	}
	return nil
}

func TestLoadTakesDefaultsWhenNothingIsSet(t *testing.T) {
	var got sample
	require.NoError(t, config.Load(&got))
	require.Equal(t, sample{
		Flag: true, Count: 7, Ratio: 0.5, Wait: 1500 * time.Millisecond, Name: "queen", Database: "postgres",
		Mode: "all", Nested: nested{Password: "hunter2", Pin: 1, Level: slog.LevelInfo},
	}, got)
}

func TestLoadReadsEveryType(t *testing.T) {
	set(t, "QT_FLAG", " Off ", "QT_COUNT", " 9 ", "QT_RATIO", "2", "QT_WAIT_MS", "20", "QT_NAME", " as is ",
		"QT_DB", "other", "QT_MODE", " NEW ", "QT_TOKEN", "s3cret", "QT_PASSWORD", "p", "QT_LEVEL", "debug")
	var got sample
	require.NoError(t, config.Load(&got))
	require.Equal(t, sample{
		Flag: false, Count: 9, Ratio: 2, Wait: 20 * time.Millisecond, Name: " as is ", Database: "other",
		Mode: "new", Token: "s3cret", Nested: nested{Password: "p", Pin: 1, Level: slog.LevelDebug},
	}, got)
}

func TestLoadTreatsBlankAsDefaultExceptForTexts(t *testing.T) {
	set(t, "QT_FLAG", " ", "QT_COUNT", "", "QT_RATIO", "\t", "QT_WAIT_MS", "", "QT_MODE", "", "QT_LEVEL", " ", "QT_NAME", "")
	var got sample
	require.NoError(t, config.Load(&got))
	require.Equal(t, sample{
		Flag: true, Count: 7, Ratio: 0.5, Wait: 1500 * time.Millisecond, Name: "", Database: "postgres",
		Mode: "all", Nested: nested{Password: "hunter2", Pin: 1, Level: slog.LevelInfo},
	}, got)
}

func TestLoadTakesTheFirstNonEmptyName(t *testing.T) {
	for name, tc := range map[string]struct{ first, second, want string }{
		"first wins when both are set":   {"one", "two", "one"},
		"second when the first is empty": {"", "two", "two"},
		"default when both are empty":    {"", "", "postgres"},
	} {
		t.Run(name, func(t *testing.T) {
			set(t, "QT_DATABASE", tc.first, "QT_DB", tc.second)
			var got sample
			require.NoError(t, config.Load(&got))
			require.Equal(t, tc.want, got.Database)
		})
	}
}

func TestLoadReportsEveryProblemAtOnce(t *testing.T) {
	set(t, "QT_FLAG", "maybe", "QT_COUNT", "0x10", "QT_RATIO", "NaN", "QT_WAIT_MS", "90000", "QT_MODE", "old",
		"QT_PIN", "sesame", "QT_LEVEL", "loud", "QT_PASSWORD", "")
	var got sample
	err := config.Load(&got)

	var all *config.Error
	require.ErrorAs(t, err, &all)
	require.Equal(t, `configuration: 8 problems
  QT_FLAG="maybe": true/false, 1/0, yes/no or on/off (any case) is allowed
  QT_COUNT="0x10": a whole number is allowed
  QT_RATIO="NaN": a decimal number is allowed
  QT_MODE="old": all or new is allowed
  QT_PIN="<set:6 chars>": a whole number is allowed
  QT_LEVEL="loud": slog: level string "loud": unknown name is allowed
  QT_WAIT_MS="90000": a number of milliseconds between 0 and 60000 is allowed
  QT_PASSWORD="": any text but the empty one is allowed`, err.Error())
}

func TestLoadRefusesNumbersThatDoNotFit(t *testing.T) {
	for name, text := range map[string]string{
		"beyond 64 bits": "99999999999999999999", "not whole": "1.5", "with a unit": "5s", "hexadecimal": "0x1",
		"underscored": "1_000",
	} {
		t.Run(name, func(t *testing.T) {
			set(t, "QT_COUNT", text)
			require.ErrorContains(t, config.Load(&sample{}), fmt.Sprintf("QT_COUNT=%q: a whole number is allowed", text))
		})
	}
	for name, text := range map[string]string{"negative": "-1", "overflowing": "9223372036854775807", "a duration": "1s"} {
		t.Run("milliseconds "+name, func(t *testing.T) {
			set(t, "QT_WAIT_MS", text)
			require.ErrorContains(t, config.Load(&sample{}), fmt.Sprintf("QT_WAIT_MS=%q: a whole number of milliseconds", text))
		})
	}
}

func TestParseBoolKnowsOneListOfSpellings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"true": true, "1": true, "YES": true, " on ": true, "false": false, "0": false, "No": false, "oFF\t": false,
	} {
		got, err := config.ParseBool(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "t", "F", "2", "enabled", "true!", "y"} {
		_, err := config.ParseBool(text)
		require.Error(t, err, text)
	}
}

func TestSecretNeverPrints(t *testing.T) {
	t.Parallel()
	s := config.Secret("grüße-zz")
	var buf bytes.Buffer
	slog.New(slog.NewJSONHandler(&buf, nil)).Info("x", "token", s, "holder", struct{ T config.Secret }{s})
	encoded, err := json.Marshal(map[string]any{"t": s})
	require.NoError(t, err)
	buf.Write(encoded)
	fmt.Fprintf(&buf, "%v %s %q %x %#v %+v %d", s, s, s, s, s, struct{ T config.Secret }{s}, s)

	require.NotContains(t, buf.String(), "zz")
	require.Contains(t, buf.String(), "<set:8 chars>")
	require.Equal(t, "<unset>", config.Secret("").String())
	require.Equal(t, "grüße-zz", s.Reveal())
}

func TestShowLogsResolvedValuesAndMasksSecrets(t *testing.T) {
	set(t, "QT_TOKEN", "abcdef", "QT_COUNT", "3")
	var got sample
	require.NoError(t, config.Load(&got))
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{ReplaceAttr: dropTime}))
	config.Show(t.Context(), log, "sample", &got, slog.String("derived", "yes"))
	require.Equal(t, `level=INFO msg="config: sample" QT_FLAG=true QT_COUNT=3 QT_RATIO=0.5 QT_WAIT_MS=1500 QT_NAME=queen `+
		`QT_DATABASE=postgres QT_MODE=all QT_TOKEN="<set:6 chars>" QT_PASSWORD="<set:7 chars>" QT_PIN="<set:1 chars>" `+
		"QT_LEVEL=INFO derived=yes\n", buf.String())
}

func TestShowShortensLongTexts(t *testing.T) {
	t.Parallel()
	long := "-----BEGIN CERTIFICATE-----\n" + strings.Repeat("A", 4000)
	attrs := config.Values(&struct {
		Cert string `envconfig:"QT_CERT"`
	}{long})
	require.Equal(t, `"-----BEGIN CERTIFICA"… (4028 bytes)`, attrs[0].Value.String())
}

func TestFindUnknownNamesTheNearestVariable(t *testing.T) {
	t.Parallel()
	got := config.FindUnknown([]string{
		"QT_COUNTS=1", "QT_FLAG=true", "QT_DB=x", "QT_ELSEWHERE_ENTIRELY=1", "OTHER=1", "QT_MDOE=all",
		"QT_PORT=tcp://10.0.0.1:6632", "QT_SERVICE_HOST=10.0.0.1", "QT_SERVICE_PORT_HTTP=6632", "QT_PORT_6632_TCP_ADDR=10.0.0.1",
	}, "QT_", &sample{})
	require.Equal(t, []config.Unknown{
		{Name: "QT_COUNTS", Hint: "QT_COUNT"}, {Name: "QT_ELSEWHERE_ENTIRELY"}, {Name: "QT_MDOE", Hint: "QT_MODE"},
	}, got)
}

func set(t *testing.T, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		t.Setenv(pairs[i], pairs[i+1])
	}
}

func dropTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// overridden shares a struct with sample and wants another default of it.
type overridden struct {
	Nested nested `defaults:"QT_PIN=4,QT_LEVEL=WARN"`
}

func TestAStructAroundGivesOtherDefaults(t *testing.T) {
	var got overridden
	require.NoError(t, config.Load(&got))
	require.Equal(t, nested{Password: "hunter2", Pin: 4, Level: slog.LevelWarn}, got.Nested)
	set(t, "QT_PIN", "5", "QT_LEVEL", "")
	require.NoError(t, config.Load(&got))
	require.Equal(t, nested{Password: "hunter2", Pin: 5, Level: slog.LevelWarn}, got.Nested)
}

func TestWarnUnknownLeavesOutTheTestsOwn(t *testing.T) {
	t.Parallel()
	log, lines := logtest.NewRecorder()
	config.WarnUnknown(t.Context(), log, []string{"QT_COUNTS=1", "QUEEN_PPROFF=1", "QUEEN_TEST_BROKERS=3"}, &struct {
		Profiles bool `envconfig:"QUEEN_PPROF"`
	}{})
	require.Equal(t, 1, strings.Count(lines.String(), "\n"), lines.String())
	require.Contains(t, lines.String(), `level=WARN msg="environment variable is not read" variable=QUEEN_PPROFF did_you_mean=QUEEN_PPROF`)
}
