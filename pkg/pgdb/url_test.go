package pgdb

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/config"
)

func withURL(url string) Config {
	return Config{URL: config.Secret(url), SSLVerify: true, PoolSize: 2, StatementTimeout: 5000}
}

func TestAURLFillsTheParts(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://me:pw@db/mine":                                                 "db 5432 me pw mine db:5432",
		"postgresql://me:pw@db:6543/mine\n":                                        "db 6543 me pw mine db:6543",
		"postgres://me@db/mine?password=pw&port=1":                                 "db 1 me pw mine db:1",
		"postgres://m%40e:p%2Fw%3F@[::1]/mi%20ne":                                  "::1 5432 m@e p/w? mi ne [::1]:5432",
		"postgres://me:p:w#?@[::1]:7/mine":                                         "::1 7 me p:w#? mine [::1]:7",
		"postgres:///mine?host=/run/postgresql&user=me":                            "/run/postgresql 5432 me  mine /run/postgresql:5432",
		"postgres://me:pw@%2Frun%2Fpostgresql:5433/mine":                           "/run/postgresql 5433 me pw mine /run/postgresql:5433",
		"postgres://me:pw@a,b:2,[::1]/mine":                                        "a,b,::1 5432 me pw mine a:5432,b:2,[::1]:5432",
		"postgres://me:pw@db/mine?":                                                "db 5432 me pw mine db:5432",
		"postgres://me:pw@a:1,b:1/mine?sslmode=require&":                           "a,b 1 me pw mine a:1,b:1",
		"postgres://me:pw@db/mine?connect_timeout=60&target_session_attrs=primary": "db 5432 me pw mine db:5432",
	} {
		c := withURL(url)
		c.Resolve()
		require.NoError(t, c.Validate(), url)
		got := fmt.Sprint(c.Host, " ", c.Port, " ", c.User, " ", c.Password.Reveal(), " ", c.Database, " ", c.Address())
		require.Equal(t, want, got, url)
	}
}

func TestWhomAURLTrusts(t *testing.T) {
	t.Parallel()
	ca, _ := newCert(t)
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, []byte(ca), 0o600))
	for query, want := range map[string]string{
		"":                                       "plaintext false",
		"?sslmode=disable":                       "plaintext false",
		"?sslmode=require":                       "accept-any false",
		"?sslmode=verify-full":                   "system-roots true, name checked",
		"?sslrootcert=system":                    "system-roots true, name checked",
		"?sslrootcert=" + file:                   "supplied-ca true, name checked",
		"?sslmode=require&sslrootcert=" + file:   "supplied-ca true",
		"?sslmode=verify-ca&sslrootcert=" + file: "supplied-ca true",
		"+":                                      "supplied-ca true, name checked",
		"+?sslmode=require":                      "supplied-ca true",
		"+?sslmode=verify-ca":                    "supplied-ca true",
		"+?sslmode=verify-full":                  "supplied-ca true, name checked",
	} {
		c := withURL("postgres://me:pw@a,b/mine" + query)
		if query != "" && query[0] == '+' {
			c = withURL("postgres://me:pw@a,b/mine" + query[1:])
			c.SSLRootCert = ca
		}
		c.Resolve()
		require.NoError(t, c.Validate(), query)
		cc, err := c.connConfig()
		require.NoError(t, err, query)
		trust, verified := c.trust()
		got := fmt.Sprint(trust, " ", verified)
		require.Equal(t, trust == trustNobody, cc.TLSConfig == nil, query)
		require.Len(t, cc.Fallbacks, 1, query)
		if cc.TLSConfig != nil {
			require.Equal(t, []string{"a", "b"}, []string{cc.TLSConfig.ServerName, cc.Fallbacks[0].TLSConfig.ServerName}, query)
			require.Equal(t, verified, cc.TLSConfig.VerifyPeerCertificate != nil || !cc.TLSConfig.InsecureSkipVerify, query)
			if !cc.TLSConfig.InsecureSkipVerify {
				got += ", name checked"
			}
		}
		require.Equal(t, want, got, query)
	}
}

func TestAURLThatCannotBeUsedIsRefusedWithoutShowingIt(t *testing.T) {
	t.Parallel()
	for url, reason := range map[string]string{
		"me:sesame@db/mine":                                               "begins with postgres:// or postgresql://",
		"mysql://me:sesame@db/mine":                                       "begins with postgres:// or postgresql://",
		"host=db password=sesame":                                         "begins with postgres:// or postgresql://",
		" ":                                                               "begins with postgres:// or postgresql://",
		"postgres://":                                                     "names a host",
		"postgres://me:sesame@/mine":                                      "names a host",
		"postgres://me:sesame@a,/mine":                                    "names a host",
		"postgres://db/mine":                                              "names user and database",
		"postgres://me:sesame@db":                                         "names user and database",
		"postgres://me:sesame@db/":                                        "names user and database",
		"postgres://me:se@sesame@db/mine":                                 "@ as %40",
		"postgres://me:se/sesame?sesame=1@db/mine":                        "/ as %2F",
		"postgres://me:sesame@db:0/mine":                                  "between 1 and 65535",
		"postgres://me:sesame@db:65536/mine":                              "between 1 and 65535",
		"postgres://me:sesame@a,b/mine?port=1,2,3":                        "one for each host",
		"postgres://me:sesame%zz@db/mine":                                 "invalid percent-encoded token in password",
		"postgres://me:sesame@db/mine?sslmode=prefer":                     "disable, require, verify-ca or verify-full",
		"postgres://me:sesame@db/mine?sslmode=allow":                      "disable, require, verify-ca or verify-full",
		"postgres://me:sesame@db/mine?sslmode=":                           "a sslmode that says something",
		"postgres://me:sesame@db/mine?sslmode":                            "a sslmode that says something",
		"postgres://me:sesame@db/mine?sslmode=verify-ca":                  "sslrootcert or PG_SSL_ROOT_CERT",
		"postgres://me:sesame@db/mine?sslrootcert=system&sslmode=require": "only sslmode=verify-full",
		"postgres://me:sesame@db/mine?sslrootcert=/none&sslmode=disable":  "no sslmode=disable",
		"postgres://me:sesame@db/mine?sslrootcert=/none":                  "open /none",
		"postgres://me:sesame@db/mine?sslmode=require&sslcert=/none":      `both "sslcert" and "sslkey"`,
		"postgres://me:sesame@db/mine?sslmode=require&sslmode=disable":    "only one sslmode",
		"postgres://me:sesame@db/mine?search_path=x":                      `no parameter "search_path": only host, port`,
		"postgres://me:sesame@db/mine?pass%77ord=sesame":                  "no parameter",
		"postgres://me:sesame@db/mine?target_session_attrs=standby":       "read-write, primary or any",
		"postgres://me:sesame@db/mine?channel_binding=x":                  "channel_binding of disable",
		"postgres://me:sesame@db/mine?connect_timeout=x":                  "only a URL that can be used",
		"postgres://me:sesame@db/mine?connect_timeout=0":                  "between 1 and 60 seconds",
		"postgres://me:sesame@db/mine?connect_timeout=61":                 "between 1 and 60 seconds",
		"postgres:///mine?host=/run&user=me&sslmode=require":              "folder of a socket",
		"postgres://me:sesame@%2frun/mine?sslmode=verify-full":            "folder of a socket",
	} {
		c := withURL(url)
		c.Resolve()
		err := c.Validate()
		require.ErrorContains(t, err, `PG_URL="<hidden>"`, url)
		require.ErrorContains(t, err, reason, url)
		require.NotContains(t, err.Error(), "sesame", url)
		_, err = Open(t.Context(), c)
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "sesame", url)
	}
	c := withURL("postgres://me:sesame@db/mine?sslrootcert=system")
	c.SSLRootCert, _ = newCert(t)
	require.ErrorContains(t, c.Validate(), "either sslrootcert or PG_SSL_ROOT_CERT")
}

func TestAURLAndAPartOfItExclude(t *testing.T) {
	t.Setenv("PG_URL", "postgres://me:sesame@db/mine")
	require.NoError(t, config.Load(&Config{}))
	for _, part := range []string{
		"PG_HOST", "PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DATABASE", "PG_DB", "PG_USE_SSL", "PG_SSL_REJECT_UNAUTHORIZED",
	} {
		t.Run(part, func(t *testing.T) {
			t.Setenv(part, "")
			require.NoError(t, config.Load(&Config{}), "what is empty is not set")
			t.Setenv(part, "1")
			err := config.Load(&Config{})
			require.ErrorContains(t, err, part+" and PG_URL are both set")
			require.ErrorContains(t, err, "1 problem\n")
			require.NotContains(t, err.Error(), "sesame")
		})
	}
}

func TestTheLogShowsTheURLsPartsAndNoSecret(t *testing.T) {
	t.Setenv("PG_URL", "postgres://me:sesame@a,b:6/mine?sslmode=require")
	var c Config
	require.NoError(t, config.Load(&c))
	shown := fmt.Sprint(config.Values(&c), c.TrustAttrs())
	for _, part := range []string{
		"PG_URL=<set:47 chars>", "PG_HOST=a,b", "PG_PORT=5432", "PG_USER=me", "PG_PASSWORD=<set:6 chars>", "PG_DATABASE=mine",
		"PG_USE_SSL=true", "PG_SSL_REJECT_UNAUTHORIZED=false", "ssl_trust=accept-any", "addr=a:5432,b:6",
	} {
		require.Contains(t, shown, part)
	}
	require.NotContains(t, fmt.Sprintf("%s %v %+v %#v", shown, c, c, c), "sesame")
}

func TestLibpqVariablesDoNotLeakIntoAURL(t *testing.T) {
	home := t.TempDir()
	passfile := filepath.Join(home, ".pgpass")
	require.NoError(t, os.WriteFile(passfile, []byte("*:*:*:*:other\n"), 0o600))
	for k, v := range map[string]string{
		"HOME": home, "PGHOST": "elsewhere", "PGPORT": "1", "PGUSER": "other", "PGPASSWORD": "other", "PGDATABASE": "other",
		"PGAPPNAME": "other", "PGOPTIONS": "-c timezone=CET", "PGTARGETSESSIONATTRS": "read-only", "PGREQUIREAUTH": "md5",
		"PGSSLMODE": "require", "PGSSLROOTCERT": "/none", "PGSSLCERT": "/none", "PGSSLCERTMODE": "", "PGCHANNELBINDING": "require",
		"PGCONNECT_TIMEOUT": "77", "PGPASSFILE": passfile, "PGSSLNEGOTIATION": "direct", "PGMINPROTOCOLVERSION": "latest",
	} {
		t.Setenv(k, v)
	}
	for _, url := range []string{"postgres://me@db/mine", "postgres://me@db,db/mine"} {
		cc, err := withURL(url).connConfig()
		require.NoError(t, err)
		require.Equal(t, "db 5432 me  mine", fmt.Sprint(cc.Host, " ", cc.Port, " ", cc.User, " ", cc.Password, " ", cc.Database))
		require.Equal(t, connectTimeout, cc.ConnectTimeout)
		require.Equal(t, map[string]string{"application_name": "queen"}, cc.RuntimeParams)
		require.Nil(t, cc.TLSConfig)
		require.Equal(t, "prefer||3.0", cc.ChannelBinding+"|"+cc.RequireAuth+"|"+cc.MinProtocolVersion)
		require.Equal(t, len(cc.Fallbacks) > 0, cc.ValidateConnect != nil, "of several servers one that takes writes")
	}
}
