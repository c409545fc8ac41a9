package pgdb

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/config"
)

func valid() Config {
	return Config{Host: "h", Port: 5432, User: "u", Database: "d", PoolSize: 2, StatementTimeout: 1}
}

func TestValidateNamesTheVariable(t *testing.T) {
	t.Parallel()
	require.NoError(t, valid().Validate())
	for variable, spoil := range map[string]func(*Config){
		"PG_HOST":                      func(c *Config) { c.Host = " " },
		"PG_USER":                      func(c *Config) { c.User = "" },
		"PG_DATABASE":                  func(c *Config) { c.Database = "a\x00b" },
		`PG_PORT="0"`:                  func(c *Config) { c.Port = 0 },
		`PG_PORT="65536"`:              func(c *Config) { c.Port = 65536 },
		`DB_POOL_SIZE="1"`:             func(c *Config) { c.PoolSize = 1 },
		`QUEEN_STMT_TIMEOUT_MS="0"`:    func(c *Config) { c.StatementTimeout = 0 },
		"between 1 and 100000":         func(c *Config) { c.StatementTimeout = 100001 },
		"QUEEN_STMT_TIMEOUT_MS=\"9223": func(c *Config) { c.StatementTimeout = 9223372036854775807 },
		"PG_USE_SSL":                   func(c *Config) { c.Host, c.UseSSL = "/run/postgresql", true },
		"PG_SSL_ROOT_CERT":             func(c *Config) { c.SSLRootCert = "/etc/ssl/ca.pem" },
	} {
		c := valid()
		spoil(&c)
		require.ErrorContains(t, c.Validate(), variable)
	}
}

func TestAHostIsNoConnectionString(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"db", "db.example.com", "10.0.0.1", "::1", "fe80::1%eth0", "/run/postgresql"} {
		c := valid()
		c.Host = host
		require.NoError(t, c.Validate(), host)
	}
	for _, host := range []string{"postgres://u:secret@db/d", "u:secret@db", "host=db password=secret"} {
		c := valid()
		c.Host = host
		err := c.Validate()
		require.ErrorContains(t, err, "PG_HOST")
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestValidateReportsAllProblems(t *testing.T) {
	t.Parallel()
	err := Config{}.Validate()
	for _, variable := range []string{"PG_HOST", "PG_PORT", "PG_USER", "PG_DATABASE", "DB_POOL_SIZE", "QUEEN_STMT_TIMEOUT_MS"} {
		require.ErrorContains(t, err, variable)
	}
}

func TestConfigIsReadFromTheEnvironment(t *testing.T) {
	for k, v := range map[string]string{
		"PG_HOST": "db", "PG_PORT": "6543", "PG_USER": "me", "PG_PASSWORD": "pw", "PG_DATABASE": "", "PG_DB": "mine",
		"PG_USE_SSL": "on", "PG_SSL_REJECT_UNAUTHORIZED": "no", "DB_POOL_SIZE": "7", "QUEEN_STMT_TIMEOUT_MS": "1500",
	} {
		t.Setenv(k, v)
	}
	var c Config
	require.NoError(t, config.Load(&c))
	require.Equal(t, Config{
		Host: "db", Port: 6543, User: "me", Password: "pw", Database: "mine",
		UseSSL: true, PoolSize: 7, StatementTimeout: 1500,
	}, c)
	require.Equal(t, 1500*time.Millisecond, c.StatementDeadline())
}

func TestLibpqVariablesDoNotLeakIn(t *testing.T) {
	for k, v := range map[string]string{
		"PGHOST": "elsewhere", "PGPORT": "1", "PGUSER": "other", "PGPASSWORD": "other", "PGDATABASE": "other",
		"PGAPPNAME": "other", "PGOPTIONS": "-c timezone=CET", "PGTARGETSESSIONATTRS": "read-only", "PGREQUIREAUTH": "md5",
	} {
		t.Setenv(k, v)
	}
	cc, err := valid().connConfig()
	require.NoError(t, err)
	require.Equal(t, "h 5432 u d", fmt.Sprint(cc.Host, " ", cc.Port, " ", cc.User, " ", cc.Database))
	require.Empty(t, cc.Password)
	require.Equal(t, map[string]string{"application_name": "queen"}, cc.RuntimeParams)
	require.Nil(t, cc.ValidateConnect)
	require.Empty(t, cc.RequireAuth)
}

func TestThePasswordNeverPrints(t *testing.T) {
	t.Parallel()
	c := valid()
	c.Password = "hunter2"
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(verb, c), "hunter2")
	}
}
