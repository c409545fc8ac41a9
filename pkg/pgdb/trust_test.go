package pgdb_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
)

func TestTrustIsNamedAndDoubtfulTrustWarnedAbout(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg      pgdb.Config
		trust    string
		verified bool
		warning  string
	}{
		"plain text":                   {pgdb.Config{SSLVerify: true}, "plaintext", false, ""},
		"system roots":                 {pgdb.Config{UseSSL: true, SSLVerify: true}, "system-roots", true, ""},
		"given authority":              {pgdb.Config{UseSSL: true, SSLVerify: true, SSLRootCert: "x"}, "supplied-ca", true, ""},
		"given authority, told not to": {pgdb.Config{UseSSL: true, SSLRootCert: "x"}, "supplied-ca", true, "certificates are verified against the given CA"},
		"anything":                     {pgdb.Config{UseSSL: true}, "accept-any", false, "any certificate of PostgreSQL is accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, []slog.Attr{slog.String("ssl_trust", tc.trust), slog.Bool("ssl_verified", tc.verified)}, tc.cfg.TrustAttrs())
			log, lines := logtest.NewRecorder()
			tc.cfg.WarnTrust(t.Context(), log)
			if tc.warning == "" {
				require.Empty(t, lines.String())
				return
			}
			require.Contains(t, lines.String(), tc.warning)
			require.Contains(t, lines.String(), "variable=PG_SSL_REJECT_UNAUTHORIZED")
		})
	}
}
