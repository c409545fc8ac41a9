package pgdb

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pglocal"
)

// startServer runs a private server without TLS.
func startServer(t *testing.T) (*pglocal.Server, Config) {
	t.Helper()
	dir, err := os.MkdirTemp("", "queen-pgdb-") //nolint:usetesting // t.TempDir is closed to the server's user
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	server, err := pglocal.Start(t.Context(), pglocal.Options{Dir: filepath.Join(dir, "postgres"), Fast: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	return server, Config{
		Host: server.Host(), Port: server.Port(), User: server.User(), Database: "postgres",
		SSLVerify: true, PoolSize: 2, StatementTimeout: 5000,
	}
}

// enableTLS gives the server a certificate that signs itself. The server writes
// the files, so that they belong to its user.
func enableTLS(t *testing.T, server *pglocal.Server) (ca string) {
	t.Helper()
	cert, key := newCert(t)
	run := func(sql string) {
		conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(context.Background())) }()
		_, err = conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	for name, text := range map[string]string{"server.crt": cert, "server.key": key} {
		path := filepath.Join(server.DataDir(), name)
		run(`COPY (SELECT line FROM unnest(string_to_array('` + text[:len(text)-1] + `', E'\n')) AS line) TO '` + path + `'`)
		require.NoError(t, os.Chmod(path, 0o600))
	}
	run("ALTER SYSTEM SET ssl = on")
	require.NoError(t, server.Restart(t.Context(), pglocal.ModeFast))
	return cert
}

// encrypted asks the server whether the connection is.
func encrypted(t *testing.T, cfg Config) (string, error) {
	t.Helper()
	db, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	defer db.Close()
	var ssl bool
	err = db.Do(t.Context(), "look", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&ssl)
	})
	return strconv.FormatBool(ssl), err
}

func TestTLSAgainstARealServer(t *testing.T) {
	t.Parallel()
	server, cfg := startServer(t)
	cfg.UseSSL, cfg.SSLVerify = true, false
	_, err := encrypted(t, cfg)
	require.ErrorIs(t, err, ErrPool, "a server without TLS is not talked to in plain text")

	cfg.SSLVerify = true
	ca := enableTLS(t, server)
	stranger, _ := newCert(t)
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string // empty: refused
	}{
		"given CA":                  {func(c *Config) { c.SSLRootCert = ca }, "true"},
		"any certificate":           {func(c *Config) { c.SSLVerify = false }, "true"},
		"plain":                     {func(c *Config) { c.UseSSL = false }, "false"},
		"system roots":              {func(*Config) {}, ""},
		"another CA":                {func(c *Config) { c.SSLRootCert = stranger }, ""},
		"another CA beats the flag": {func(c *Config) { c.SSLRootCert, c.SSLVerify = stranger, false }, ""},
		"another host name":         {func(c *Config) { c.SSLRootCert, c.Host = ca, "localhost" }, ""},
	} {
		c := cfg
		tc.change(&c)
		got, err := encrypted(t, c)
		if tc.want == "" {
			require.ErrorIs(t, err, ErrPool, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, tc.want, got, name)
	}
	cfg.SSLRootCert, cfg.StatementTimeout = ca, 100
	requireCancelled(t, cfg)
}

// requireCancelled checks that a cancel request reaches the server.
func requireCancelled(t *testing.T, cfg Config) {
	t.Helper()
	db, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	defer db.Close()
	err = db.Do(t.Context(), "sleep", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT pg_sleep(300)")
		return err
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "57014", sqlState(err))
}

func TestASettingThatThePlatformLacksIsLeftOut(t *testing.T) {
	t.Parallel()
	server, _ := startServer(t)
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	require.NoError(t, set(t.Context(), conn, "SET TimeZone = 'UTC';", "SET client_connection_check_interval = '-2s';"))
	var zone string
	require.NoError(t, conn.QueryRow(t.Context(), "SHOW TimeZone").Scan(&zone))
	require.Equal(t, "UTC", zone)
	require.Error(t, set(t.Context(), conn, "SET nonsense = 1;", ""))
}

// readOnly is a server that refuses writes, as a standby does.
func readOnly(t *testing.T) *pglocal.Server {
	t.Helper()
	server, _ := startServer(t)
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "ALTER SYSTEM SET default_transaction_read_only = on")
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	require.NoError(t, server.Restart(t.Context(), pglocal.ModeFast))
	return server
}

func TestOfSeveralServersTheOneThatTakesWritesIsUsed(t *testing.T) {
	t.Parallel()
	standby := readOnly(t)
	primary, _ := startServer(t)
	url := func(hosts string) Config {
		return withURL("postgres://" + primary.User() + "@" + hosts + "/postgres")
	}
	at := func(s *pglocal.Server) string { return net.JoinHostPort(s.Host(), strconv.Itoa(s.Port())) }
	for _, hosts := range []string{
		at(primary) + "," + at(standby), at(standby) + "," + at(primary), "127.0.0.1:1," + at(standby) + "," + at(primary),
	} {
		db, err := Open(t.Context(), url(hosts))
		require.NoError(t, err)
		require.NoError(t, db.Do(t.Context(), "write", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `CREATE TEMP TABLE written ()`)
			return err
		}), hosts)
		session, err := db.Session(t.Context())
		require.NoError(t, err)
		var port int
		require.NoError(t, session.QueryRow(t.Context(), `SELECT inet_server_port()`).Scan(&port))
		require.Equal(t, primary.Port(), port, hosts)
		require.NoError(t, session.Close(t.Context()))
		db.Close()
	}
	db, err := Open(t.Context(), url(at(standby)+","+at(standby)))
	require.NoError(t, err)
	defer db.Close()
	require.ErrorContains(t, db.Ping(t.Context()), "read only")
}

func TestAURLEncryptsAndVerifies(t *testing.T) {
	t.Parallel()
	server, _ := startServer(t)
	ca := enableTLS(t, server)
	stranger, _ := newCert(t)
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, []byte(ca), 0o600))
	for name, tc := range map[string]struct {
		host, query, ca string
		want            string // empty: refused
	}{
		"no mode":                    {"127.0.0.1", "", "", "false"},
		"encrypted":                  {"127.0.0.1", "?sslmode=require", "", "true"},
		"authority in a file":        {"127.0.0.1", "?sslrootcert=" + file, "", "true"},
		"authority beside the URL":   {"127.0.0.1", "", ca, "true"},
		"authority of another":       {"127.0.0.1", "?sslmode=verify-ca", stranger, ""},
		"name is not looked at":      {"localhost", "?sslmode=verify-ca", ca, "true"},
		"name is of another":         {"localhost", "?sslmode=verify-full", ca, ""},
		"no public authority's":      {"127.0.0.1", "?sslmode=verify-full", "", ""},
		"the operating system's too": {"127.0.0.1", "?sslrootcert=system", "", ""},
	} {
		cfg := withURL("postgres://" + server.User() + "@" + tc.host + ":" + strconv.Itoa(server.Port()) + "/postgres" + tc.query)
		cfg.SSLRootCert = tc.ca
		got, err := encrypted(t, cfg)
		if tc.want == "" {
			require.ErrorIs(t, err, ErrPool, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, tc.want, got, name)
	}
}
