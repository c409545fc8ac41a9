package pgdb

import (
	"errors"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/queenmq/queen/pkg/config"
)

const (
	// MaxStatementTimeout is the largest statement deadline: above it a push
	// could outrun the two minutes of slack of the pop's candidate scan.
	MaxStatementTimeout = 100 * time.Second

	minPoolSize = 2 // one connection at work must leave one to look with
	maxPoolSize = 10000
	maxPort     = 65535

	connectTimeout        = 5 * time.Second
	acquireTimeoutDefault = 10 * time.Second
	applicationDefault    = "queen"

	// cancelGrace is how long a server that was told to cancel may take to say
	// so, before its connection is closed without an answer.
	cancelGrace = 3 * time.Second

	// Keepalives, here as on the server: a peer that vanished is noticed after
	// about 20 s instead of the operating system's two hours.
	keepaliveIdle     = 5 * time.Second
	keepaliveInterval = 5 * time.Second
	keepaliveCount    = 3
)

// Config says how to reach PostgreSQL. The tags are read by pkg/config.
type Config struct {
	// URL is a whole postgres:// URL instead of the parts that follow, which Resolve
	// then fills.
	URL      config.Secret `envconfig:"PG_URL"`
	Host     string        `envconfig:"PG_HOST" default:"localhost" without:"PG_URL"` // name, address, or the folder of a Unix socket
	Port     int           `envconfig:"PG_PORT" default:"5432" without:"PG_URL"`
	User     string        `envconfig:"PG_USER" default:"postgres" without:"PG_URL"`
	Password config.Secret `envconfig:"PG_PASSWORD" default:"postgres" without:"PG_URL"`
	Database string        `envconfig:"PG_DATABASE" default:"postgres" alias:"PG_DB" without:"PG_URL"`
	// UseSSL encrypts and verifies chain and name; there is no falling back to plain text.
	UseSSL bool `envconfig:"PG_USE_SSL" default:"false" without:"PG_URL"`
	// SSLVerify false accepts any certificate, unless SSLRootCert says whom to trust.
	SSLVerify   bool   `envconfig:"PG_SSL_REJECT_UNAUTHORIZED" default:"true" without:"PG_URL"`
	SSLRootCert string `envconfig:"PG_SSL_ROOT_CERT"` // PEM content, not a path
	PoolSize    int    `envconfig:"DB_POOL_SIZE" default:"40"`
	// StatementTimeout is the deadline of one piece of database work, in milliseconds.
	StatementTimeout int `envconfig:"QUEEN_STMT_TIMEOUT_MS" default:"30000"`

	// ApplicationName is what pg_stat_activity shows; empty means "queen".
	ApplicationName string `ignored:"true"`
	// AcquireTimeout bounds the wait for a free connection; 0 means 10 s.
	AcquireTimeout time.Duration `ignored:"true"`
	// MaxWaiting bounds how many callers want a connection at once, those that get one
	// immediately included; 0 sets no bound.
	MaxWaiting int `ignored:"true"`
	// ServerEnds has the server end a statement at the deadline: then it is known to be
	// rolled back, and the session stays. Our own limit is the net behind that.
	ServerEnds bool `ignored:"true"`
	// EmptiedSearchPath makes a missing schema qualifier fail; for tests.
	EmptiedSearchPath bool `ignored:"true"`
}

// StatementDeadline is the deadline of one piece of database work.
func (c Config) StatementDeadline() time.Duration {
	return time.Duration(c.StatementTimeout) * time.Millisecond
}

// limits are when the client gives a piece of work up, and when the server does. The
// later one acts only when the other could not.
func (c Config) limits() (client, server time.Duration) {
	if c.ServerEnds {
		return c.StatementDeadline() + clientMargin, c.StatementDeadline()
	}
	return c.StatementDeadline(), c.StatementDeadline() + serverMargin
}

func (c Config) acquireTimeout() time.Duration {
	if c.AcquireTimeout > 0 {
		return c.AcquireTimeout
	}
	return acquireTimeoutDefault
}

// Validate reports every value that cannot work, naming its variable.
func (c Config) Validate() error {
	_, rootsErr := c.roots()
	return errors.Join(
		c.validateServer(),
		config.Between("DB_POOL_SIZE", c.PoolSize, minPoolSize, maxPoolSize),
		config.Between("QUEEN_STMT_TIMEOUT_MS", c.StatementTimeout, 1, int(MaxStatementTimeout.Milliseconds())),
		rootsErr,
	)
}

func (c Config) validateServer() error {
	if c.URL != "" {
		_, err := c.parseURL()
		return err
	}
	problems := []error{
		present("PG_HOST", c.Host),
		c.plainHost(),
		config.Between("PG_PORT", c.Port, 1, maxPort),
		present("PG_USER", c.User),
		present("PG_DATABASE", c.Database),
	}
	if c.UseSSL && isSocket(c.Host) {
		problems = append(problems, &config.ValueError{
			Name: "PG_USE_SSL", Value: "true", Allowed: "with a Unix socket as PG_HOST only false",
		})
	}
	return errors.Join(problems...)
}

func present(name, value string) error {
	if strings.TrimSpace(value) != "" && !strings.ContainsRune(value, 0) {
		return nil
	}
	return &config.ValueError{Name: name, Value: value, Allowed: "a text that is not empty"}
}

// plainHost refuses a whole connection string, which may hold a password: it would end
// in the log, and in every error of a connection.
func (c Config) plainHost() error {
	if !strings.ContainsAny(c.Host, "@=") && !strings.Contains(c.Host, "://") {
		return nil
	}
	return &config.ValueError{Name: "PG_HOST", Value: "<hidden>", Allowed: "a host name, an address or the folder of a socket, and no connection string (that is PG_URL),"}
}

// connConfig builds pgx's configuration. What PGHOST and its like say in the
// environment is overwritten: PG_* are the only source.
func (c Config) connConfig() (*pgx.ConnConfig, error) {
	cc, err := c.serverConfig()
	if err != nil {
		return nil, err
	}
	cc.RuntimeParams = map[string]string{"application_name": c.applicationName()}
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepaliveIdle, Interval: keepaliveInterval, Count: keepaliveCount,
	}}
	cc.DialFunc = dialer.DialContext
	// On a deadline the server is told to cancel over a connection of its own;
	// the socket's deadline is the net for a server that does not answer.
	cc.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelGrace}
	}
	return cc, nil
}

// serverConfig says where the server is, who we are, and how the line is encrypted.
func (c Config) serverConfig() (*pgx.ConnConfig, error) {
	if c.URL != "" {
		return c.urlConfig()
	}
	cc, err := pgx.ParseConfig("sslmode=disable")
	if err != nil {
		return nil, err
	}
	cc.Host, cc.Port = c.Host, uint16(c.Port)
	cc.User, cc.Password, cc.Database = c.User, c.Password.Reveal(), c.Database
	cc.Fallbacks, cc.ValidateConnect = nil, nil
	cc.SSLNegotiation, cc.ChannelBinding, cc.RequireAuth = "", "prefer", ""
	cc.ConnectTimeout = connectTimeout
	cc.TLSConfig, err = c.tlsConfig()
	return cc, err
}

func (c Config) applicationName() string {
	if c.ApplicationName != "" {
		return c.ApplicationName
	}
	return applicationDefault
}
