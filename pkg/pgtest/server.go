package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/pkg/schema"
)

const (
	busyAttempts = 100
	busyPause    = 50 * time.Millisecond
	codeInUse    = "55006" // object_in_use

	fingerprintLen = 8
	folderPattern  = "queen-pgtest-"
)

// server is where the databases of one test binary live.
type server struct {
	private *pglocal.Server // nil with a given server
	dir     string          // of the private one
	admin   *pgx.ConnConfig
	owner   *pgx.Conn // its application name tells others that prefix is alive

	template string
	prefix   string // of the names of this binary's databases
	next     atomic.Int64
	clones   sync.Mutex // one at a time: cloning needs the template to itself
}

// startServer uses the server at url, or a private one.
func startServer(ctx context.Context, url string) (*server, error) {
	sum, err := schema.Fingerprint()
	if err != nil {
		return nil, err
	}
	s := &server{}
	s.setNames(sum[:fingerprintLen])
	if url == "" {
		err = s.startPrivate(ctx, sum)
	} else {
		err = s.useGiven(ctx, url)
	}
	if err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

func (s *server) setNames(sum string) {
	s.template = "queen_test_" + sum + "_template"
	// The number alone would repeat after a reboot, or in another container.
	nonce := make([]byte, 2)
	_, _ = rand.Read(nonce)
	s.prefix = fmt.Sprintf("queen_test_%s_%d_%s", sum, os.Getpid(), hex.EncodeToString(nonce))
}

func (s *server) startPrivate(ctx context.Context, sum string) error {
	pglocal.RemoveStale(ctx, folderPattern)
	seed, err := ensureSeed(ctx, sum, s.template)
	if err != nil {
		return fmt.Errorf("prepare a cluster: %w", err)
	}
	if s.dir, err = pglocal.MakeScratch(folderPattern); err != nil {
		return err
	}
	s.private, err = pglocal.Start(ctx, pglocal.Options{Dir: filepath.Join(s.dir, pglocal.ScratchData), Fast: true, Seed: seed})
	if err != nil {
		return err
	}
	s.admin, err = pgx.ParseConfig(s.private.URL("postgres"))
	if err != nil {
		return err
	}
	return s.ensureTemplate(ctx)
}

func (s *server) useGiven(ctx context.Context, url string) error {
	var err error
	if s.admin, err = pgx.ParseConfig(url); err != nil {
		return fmt.Errorf("%s: %w", urlVariable, err)
	}
	owner := s.admin.Copy()
	owner.RuntimeParams["application_name"] = s.prefix
	if s.owner, err = pgx.ConnectConfig(ctx, owner); err != nil {
		return fmt.Errorf("%s: %w", urlVariable, err)
	}
	if err := s.dropLeftovers(ctx); err != nil {
		return fmt.Errorf("drop the databases of earlier runs: %w", err)
	}
	return s.ensureTemplate(ctx)
}

func (s *server) close(ctx context.Context) error {
	var errs []error
	if s.owner != nil {
		errs = append(errs, s.owner.Close(ctx))
	}
	if s.private != nil {
		errs = append(errs, s.private.StopImmediate(ctx))
	}
	if s.dir != "" {
		errs = append(errs, pglocal.Remove(ctx, filepath.Join(s.dir, pglocal.ScratchData)), os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// exec runs one statement on a connection of its own, again while the database
// it needs to itself is in use: autovacuum may look at any at any time.
func (s *server) exec(ctx context.Context, sql string) error {
	conn, err := pgx.ConnectConfig(ctx, s.admin.Copy())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for range busyAttempts {
		_, err = conn.Exec(ctx, sql)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != codeInUse {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(busyPause):
		}
	}
	return err
}

func (s *server) create(ctx context.Context, name, how string) error {
	s.clones.Lock()
	defer s.clones.Unlock()
	return s.exec(ctx, "CREATE DATABASE "+name+" "+how+" STRATEGY file_copy")
}

func (s *server) drop(ctx context.Context, name string) error {
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
}

// config addresses one database of the server.
func (s *server) config(database string) pgdb.Config {
	plainAllowed := s.admin.TLSConfig == nil
	for _, f := range s.admin.Fallbacks {
		plainAllowed = plainAllowed || f.TLSConfig == nil
	}
	return pgdb.Config{
		Host: s.admin.Host, Port: int(s.admin.Port), Database: database,
		User: s.admin.User, Password: config.Secret(s.admin.Password), UseSSL: !plainAllowed,
		PoolSize: poolSize, StatementTimeout: statementTimeout,
		ApplicationName: "queen-test-" + strconv.Itoa(os.Getpid()), EmptiedSearchPath: true,
	}
}
