package pgdb

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

const (
	// MaxStatementTimeout is the largest statement deadline: above it a push
	// could outrun the two minutes of slack of the pop's candidate scan.
	MaxStatementTimeout = 100 * time.Second

	connectTimeout = 5 * time.Second
)

// Config says how to reach PostgreSQL. The tags are read by pkg/config.
type Config struct {
	Host              string `envconfig:"PG_HOST" default:"localhost"`
	Port              int    `envconfig:"PG_PORT" default:"5432"`
	User              string `envconfig:"PG_USER" default:"postgres"`
	Password          string `envconfig:"PG_PASSWORD" default:"postgres" secret:"true"`
	Database          string `envconfig:"PG_DATABASE" default:"postgres" alias:"PG_DB"`
	UseSSL            bool   `envconfig:"PG_USE_SSL" default:"false"`
	SSLVerify         bool   `envconfig:"PG_SSL_REJECT_UNAUTHORIZED" default:"true"`
	SSLRootCert       string `envconfig:"PG_SSL_ROOT_CERT"` // PEM content, not a path
	PoolSize          int    `envconfig:"DB_POOL_SIZE" default:"40"`
	StatementTimeout  int    `envconfig:"QUEEN_STMT_TIMEOUT_MS" default:"30000"` // milliseconds
	ApplicationName   string `ignored:"true"`
	EmptiedSearchPath bool   `ignored:"true"` // tests: a missing schema qualifier fails
}

// StatementDeadline is the deadline of one piece of database work.
func (c Config) StatementDeadline() time.Duration {
	return time.Duration(c.StatementTimeout) * time.Millisecond
}

// Validate reports every value that cannot work, naming its variable.
func (c Config) Validate() error {
	var problems []error
	if c.Port < 1 || c.Port > 65535 {
		problems = append(problems, fmt.Errorf("PG_PORT=%d: 1 to 65535 is allowed", c.Port))
	}
	if c.PoolSize < 2 || c.PoolSize > 10000 {
		problems = append(problems, fmt.Errorf("DB_POOL_SIZE=%d: 2 to 10000 is allowed", c.PoolSize))
	}
	if d := c.StatementDeadline(); d < time.Millisecond || d > MaxStatementTimeout {
		problems = append(problems, fmt.Errorf("QUEEN_STMT_TIMEOUT_MS=%d: 1 to %d is allowed",
			c.StatementTimeout, MaxStatementTimeout.Milliseconds()))
	}
	if _, err := c.rootPool(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func (c Config) rootPool() (*x509.CertPool, error) {
	if c.SSLRootCert == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(c.SSLRootCert)) {
		return nil, errors.New("PG_SSL_ROOT_CERT: the content of a PEM certificate is allowed (not a path), and none could be read")
	}
	return pool, nil
}

// connConfig builds pgx's configuration. Every value comes from c: the PG*
// variables of libpq do not leak in.
func (c Config) connConfig() (*pgx.ConnConfig, error) {
	cc, err := pgx.ParseConfig("sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("prepare connection settings: %w", err)
	}
	cc.Host, cc.Port = c.Host, uint16(c.Port)
	cc.User, cc.Password, cc.Database = c.User, c.Password, c.Database
	cc.Fallbacks = nil
	cc.ConnectTimeout = connectTimeout
	cc.RuntimeParams = map[string]string{"application_name": c.ApplicationName}
	if c.UseSSL {
		roots, err := c.rootPool()
		if err != nil {
			return nil, err
		}
		cc.TLSConfig = &tls.Config{ServerName: c.Host, RootCAs: roots, MinVersion: tls.VersionTLS12}
		if !c.SSLVerify {
			// The operator asked for encryption without identity (PG_SSL_REJECT_UNAUTHORIZED=false).
			cc.TLSConfig.InsecureSkipVerify = true
		}
	}
	// On a deadline the server is told to cancel over a fresh connection; the
	// socket deadline is the net for a server that does not answer.
	cc.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Second}
	}
	return cc, nil
}
