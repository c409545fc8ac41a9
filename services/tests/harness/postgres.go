package harness

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pglocal"
)

// postgres is the server of one test binary: a private one, or the one that
// QUEEN_TEST_PG_URL names.
type postgres struct {
	url    string // of the maintenance database
	admin  *pgxpool.Pool
	number atomic.Int64 // of the next database
}

// Database is one database of that server.
type Database struct {
	Name string
	// Pool is the suite's own way in, past the broker.
	Pool     *pgxpool.Pool
	address  string   // of the server
	env      []string // how a service connects
	ownerEnv []string // how whoever owns the schema connects
	owned    bool     // services are the owner, too
}

// asOwner has services connect as the owner of the schema, and brokers apply it.
func (d *Database) asOwner() { d.env, d.owned = d.ownerEnv, true }

func (s *suite) startPostgres() (*postgres, error) {
	url := os.Getenv("QUEEN_TEST_PG_URL")
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if url == "" {
		server, err := s.startServer(ctx, "postgres", 0)
		if err != nil {
			return nil, err
		}
		url = server.URL("postgres")
	}
	admin, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	s.onClose(admin.Close)
	if err := createRuntimeRole(ctx, admin); err != nil {
		return nil, err
	}
	s.onClose(func() {
		_, err := admin.Exec(context.Background(), "DROP ROLE "+pgx.Identifier{runtimeRole()}.Sanitize())
		s.fault(err)
	})
	return &postgres{url: url, admin: admin}, nil
}

// plentyOfConnections is for many tests at once.
const plentyOfConnections = 600

// startServer runs a private server whose data need not survive the machine.
func (s *suite) startServer(ctx context.Context, name string, connections int) (*pglocal.Server, error) {
	server, err := pglocal.Start(ctx, pglocal.Options{
		Dir: filepath.Join(s.data, name), Fast: true,
		Settings: map[string]string{"max_connections": strconv.Itoa(cmp.Or(connections, plentyOfConnections))},
	})
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.onClose(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s.fault(server.Stop(ctx))
	})
	return server, nil
}

// create makes a database, a copy of another one or an empty one.
func (p *postgres) create(ctx context.Context, template string) (*Database, error) {
	name := "queen_e2e_" + strconv.Itoa(os.Getpid()) + "_" + strconv.FormatInt(p.number.Add(1), 10)
	statement := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize()
	if template != "" {
		statement += " TEMPLATE " + pgx.Identifier{template}.Sanitize()
	}
	if _, err := p.admin.Exec(ctx, statement); err != nil {
		return nil, fmt.Errorf("create a database: %w", err)
	}
	return openDatabase(ctx, p.url, name)
}

func openDatabase(ctx context.Context, url, name string) (*Database, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read the PostgreSQL address: %w", err)
	}
	cfg.ConnConfig.Database = name
	cfg.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	address := net.JoinHostPort(cfg.ConnConfig.Host, strconv.Itoa(int(cfg.ConnConfig.Port)))
	env := []string{
		"PG_HOST=" + cfg.ConnConfig.Host,
		"PG_PORT=" + strconv.Itoa(int(cfg.ConnConfig.Port)),
		"PG_USER=" + cfg.ConnConfig.User,
		"PG_PASSWORD=" + cfg.ConnConfig.Password,
		"PG_DATABASE=" + name,
		"PG_USE_SSL=false",
	}
	return &Database{Name: name, Pool: pool, address: address, env: slices.Concat(env, runtimeEnv()), ownerEnv: env}, nil
}

// proxied makes brokers connect through a proxy. The suite's own pool does not.
func (d *Database) proxied(p *Proxy) {
	host, port, _ := strings.Cut(p.Addr(), ":")
	d.env = append(d.env, "PG_HOST="+host, "PG_PORT="+port)
}

// drop removes a database, whoever is still connected to it.
func (p *postgres) drop(ctx context.Context, db *Database) error {
	db.Pool.Close()
	_, err := p.admin.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{db.Name}.Sanitize()+" WITH (FORCE)")
	if err != nil {
		return fmt.Errorf("drop a database: %w", err)
	}
	return nil
}

// checkDeadlocks reports that transactions locked each other out, which the
// order of locks forbids. The broker repeats such a transaction, so that no
// answer shows it. Its sessions must have ended: they report when they do.
func (d *Database) checkDeadlocks(ctx context.Context) error {
	var n int
	err := d.Pool.QueryRow(ctx, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&n)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d deadlocks in the shared database", n)
	}
	return err
}

// Exec runs one statement past the broker and answers the rows it touched.
func (d *Database) Exec(t testing.TB, sql string, args ...any) int64 {
	t.Helper()
	tag, err := d.Pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err, sql)
	return tag.RowsAffected()
}

// Row scans the only row of a query.
func (d *Database) Row(t testing.TB, sql string, args, dst []any) {
	t.Helper()
	require.NoError(t, d.Pool.QueryRow(t.Context(), sql, args...).Scan(dst...), sql)
}

// Value is the only value of a query.
func Value[T any](t testing.TB, d *Database, sql string, args ...any) T {
	t.Helper()
	var v T
	d.Row(t, sql, args, []any{&v})
	return v
}
