package config

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/collector"
	env "github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/hints"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/telemetry"
)

// Config is the configuration of a broker. Each part is one block of the log at
// start.
type Config struct {
	Server    Server
	Ops       opsserver.Config
	Postgres  pgdb.Config
	Engine    Engine
	Fusion    Fusion
	Dedup     Dedup
	Hotlist   Hotlist
	PopFusion PopFusion
	Acks      Acks
	Budget    Budget
	Flow      Flow
	KV        KV
	Timers    Timers
	Sink      Sink
	Browse    Browse
	Metrics   collector.Config
	Mesh      hints.Config
	Security  Security
	Logging   logging.Config
	Rates     Rates
	Telemetry telemetry.Settings
}

// Server is the process and its client listener.
type Server struct {
	Port     int    `envconfig:"PORT" default:"6632"`
	BindAddr string `envconfig:"QUEEN_BIND_ADDR" default:"0.0.0.0"` // host or IP, without a port
	// ServerID is a cosmetic name of this instance; HOSTNAME, then a random one, stand in.
	ServerID string `envconfig:"QUEEN_SERVER_ID" alias:"HOSTNAME"`
	// MaxBodyBytes bounds one request body, MaxInflightBytes those of all requests at work.
	MaxBodyBytes     int64 `envconfig:"QUEEN_MAX_BODY_BYTES" default:"67108864"`
	MaxInflightBytes int64 `envconfig:"QUEEN_MAX_INFLIGHT_BYTES" default:"268435456"`
	// ApplySchema brings the database to this binary's schema at start.
	ApplySchema bool `envconfig:"QUEEN_APPLY_SCHEMA" default:"true"`
	// RuntimeRole lists roles that own nothing and run services: whoever applies the
	// schema grants them what they need.
	RuntimeRole string        `envconfig:"QUEEN_RUNTIME_ROLE"`
	BootDBWait  time.Duration `envconfig:"QUEEN_BOOT_DB_WAIT_MS" default:"60000"`
	// ShutdownDelay is how long a broker that was asked to stop goes on serving, already
	// unready, so that those who send requests to it can learn of that.
	ShutdownDelay time.Duration `envconfig:"QUEEN_SHUTDOWN_DELAY_MS" default:"0"`
	// ShutdownTimeout bounds a stop, from the end of that delay to the end of the process.
	ShutdownTimeout time.Duration `envconfig:"QUEEN_SHUTDOWN_TIMEOUT_MS" default:"25000"`
}

// Engine is how messages are stored.
type Engine struct {
	PushDeadline time.Duration `envconfig:"QUEEN_PUSH_DEADLINE_MS" default:"10000"` // a push keeps trying for this long
	ZstdLevel    int           `envconfig:"QUEEN_V2_ZSTD_LEVEL" default:"3"`
	// PoolReserve is the number of pooled connections that the message plane
	// leaves to health checks, settings and listings.
	PoolReserve int `envconfig:"QUEEN_ADMISSION_POOL_RESERVE" default:"8"`
	// CacheRefresh bounds the age of what is remembered of the settings of queues, where
	// it is below the 30 s that hold anyway. A change that is heard of is seen at once.
	CacheRefresh time.Duration `envconfig:"QUEEN_CACHE_REFRESH_INTERVAL_MS" default:"60000"`
}

// Flow is how consumers wait.
type Flow struct {
	// DefaultTimeout parks a pop that asks to wait and names no timeout.
	DefaultTimeout  time.Duration `envconfig:"DEFAULT_TIMEOUT" alias:"POP_DEFAULT_TIMEOUT_MS" default:"30000"`
	InitialInterval time.Duration `envconfig:"POP_WAIT_INITIAL_INTERVAL_MS" default:"100"`
	// Threshold is the number of fruitless looks before the interval grows.
	Threshold   int           `envconfig:"POP_WAIT_BACKOFF_THRESHOLD" default:"3"`
	Multiplier  float64       `envconfig:"POP_WAIT_BACKOFF_MULTIPLIER" default:"2.0"`
	MaxInterval time.Duration `envconfig:"POP_WAIT_MAX_INTERVAL_MS" default:"1000"`
	// SubscriptionMode is where a group starts that names no start of its own.
	SubscriptionMode string `envconfig:"DEFAULT_SUBSCRIPTION_MODE" default:"all" allowed:"all,new"`
	// PendingGate puts a cheap probe before the repeated looks of a parked pop.
	PendingGate bool `envconfig:"QUEEN_POP_PENDING_GATE" default:"true"`
	// MaxParked is how many pops may wait at once; more are told to come again.
	MaxParked int `envconfig:"QUEEN_MAX_PARKED_POPS" default:"20000"`
	// SegmentCacheMB is the memory, in MiB, for segments of which only a part was
	// delivered, and for a part of it what was pushed last; 0 keeps none.
	SegmentCacheMB int `envconfig:"QUEEN_SEGMENT_CACHE_MB" default:"32"`
}

// Sink is what a storage sink may ask for.
type Sink struct {
	// SafeFloor is how long a change of a partition must lie back to be told as settled
	// where the role of this broker cannot see since when other sessions write.
	SafeFloor time.Duration `envconfig:"QUEEN_FETCH_SAFE_FLOOR_MS" default:"30000"`
}

// Validate checks the floor.
func (s Sink) Validate() error {
	return env.MillisBetween("QUEEN_FETCH_SAFE_FLOOR_MS", s.SafeFloor, time.Millisecond, maxWait)
}

// Browse is how messages are shown to people.
type Browse struct {
	// PreviewBytes is the longest payload that a listing shows; of a longer one it
	// shows the beginning.
	PreviewBytes int `envconfig:"QUEEN_BROWSE_PREVIEW_BYTES" default:"32768"`
}

// maxPreviewBytes keeps the largest page in memory.
const maxPreviewBytes = 1 << 20

// Validate checks the bounds of what is shown.
func (b Browse) Validate() error {
	return env.Between("QUEEN_BROWSE_PREVIEW_BYTES", b.PreviewBytes, 1, maxPreviewBytes)
}

// Security is what guards the broker. This version guards nothing, and must not
// start where somebody believes that it does.
type Security struct {
	JWT     bool `envconfig:"JWT_ENABLED" default:"false"`
	Tenancy bool `envconfig:"QUEEN_TENANCY_HEADER" default:"false"`
	// TrustedProxy says that nobody but a proxy reaches the broker, which sets the
	// tenant. Tenancy needs it: a client could otherwise choose whose keys it reads.
	TrustedProxy bool `envconfig:"QUEEN_KV_TRUSTED_PROXY" default:"false"`
	// EncryptionKey only leads to a warning: queues that ask for encryption are
	// stored as plain text.
	EncryptionKey env.Secret `envconfig:"QUEEN_ENCRYPTION_KEY"`
}

// Validate refuses guards that do not exist.
func (s Security) Validate() error {
	var problems []error
	if s.JWT {
		problems = append(problems, &env.ValueError{
			Name: "JWT_ENABLED", Value: "true", Allowed: "only false (this version has no authentication)",
		})
	}
	if s.Tenancy {
		problems = append(problems, &env.ValueError{
			Name: "QUEEN_TENANCY_HEADER", Value: "true", Allowed: "only false (this version has one tenant)",
		})
	}
	if s.Tenancy && !s.TrustedProxy {
		problems = append(problems, &env.ValueError{
			Name: "QUEEN_KV_TRUSTED_PROXY", Value: "false", Allowed: "with QUEEN_TENANCY_HEADER only true (a proxy must set the tenant)",
		})
	}
	if key := s.EncryptionKey.Reveal(); key != "" && !isKey(key) {
		problems = append(problems, &env.ValueError{
			Name: "QUEEN_ENCRYPTION_KEY", Value: s.EncryptionKey.String(), Allowed: "64 hexadecimal digits or nothing",
		})
	}
	return errors.Join(problems...)
}

// isKey tells whether a text can be a 256-bit key.
func isKey(text string) bool {
	key, err := hex.DecodeString(text)
	return err == nil && len(key) == keyBytes
}

const keyBytes = 32

const (
	maxBytes = 1 << 40
	maxWait  = 24 * time.Hour

	// maxShutdownDelay is longer than any balancer takes to notice.
	maxShutdownDelay = 5 * time.Minute

	maxLooks = 1 << 20
	// maxParked is about what the ports of one address and the memory allow.
	maxParked = 1_000_000
)

// Load reads the environment. The error names every problem.
func Load() (*Config, error) {
	c := &Config{}
	if err := env.Load(c); err != nil {
		return nil, err
	}
	if c.Server.ServerID == "" {
		c.Server.ServerID = "queen-" + uuid.NewString()[:8]
	}
	c.Postgres.ApplicationName = "queen-broker"
	c.Metrics.Flush = max(c.Metrics.Flush, collector.FlushFloor)
	c.KV.clamp()
	c.Rates.clamp()
	return c, nil
}

// RuntimeRoles are the names in RuntimeRole.
func (s Server) RuntimeRoles() []string {
	var roles []string
	for name := range strings.SplitSeq(s.RuntimeRole, ",") {
		if name = strings.TrimSpace(name); name != "" {
			roles = append(roles, name)
		}
	}
	return roles
}

// Addr is the address of the client listener.
func (s Server) Addr() string { return net.JoinHostPort(s.BindAddr, strconv.Itoa(s.Port)) }

// Validate checks the bounds of the process and its listener.
func (s Server) Validate() error {
	problems := []error{
		env.Between("PORT", s.Port, 1, 65535),
		env.Between("QUEEN_MAX_BODY_BYTES", s.MaxBodyBytes, 1, maxBytes),
		env.Between("QUEEN_MAX_INFLIGHT_BYTES", s.MaxInflightBytes, 1, maxBytes),
		env.MillisBetween("QUEEN_BOOT_DB_WAIT_MS", s.BootDBWait, 0, maxWait),
		env.MillisBetween("QUEEN_SHUTDOWN_DELAY_MS", s.ShutdownDelay, 0, maxShutdownDelay),
		env.MillisBetween("QUEEN_SHUTDOWN_TIMEOUT_MS", s.ShutdownTimeout, time.Millisecond, maxWait),
	}
	if s.MaxInflightBytes < s.MaxBodyBytes {
		problems = append(problems, &env.ValueError{
			Name: "QUEEN_MAX_INFLIGHT_BYTES", Value: strconv.FormatInt(s.MaxInflightBytes, 10),
			Allowed: fmt.Sprintf("at least QUEEN_MAX_BODY_BYTES (%d), so that the largest body fits,", s.MaxBodyBytes),
		})
	}
	if !isHost(s.BindAddr) {
		problems = append(problems, &env.ValueError{
			Name: "QUEEN_BIND_ADDR", Value: s.BindAddr, Allowed: "a host name or an IP address without a port (the port is PORT)",
		})
	}
	return errors.Join(problems...)
}

// isHost accepts what can stand before a port: a name, an IPv4 address or a bare IPv6 one.
func isHost(s string) bool {
	if strings.Contains(s, ":") {
		return net.ParseIP(strings.Split(s, "%")[0]) != nil
	}
	return !strings.ContainsAny(s, "/[] \t")
}

// Validate checks the bounds of the engine.
func (e Engine) Validate() error {
	return errors.Join(
		env.MillisBetween("QUEEN_PUSH_DEADLINE_MS", e.PushDeadline, time.Millisecond, maxWait),
		env.Between("QUEEN_V2_ZSTD_LEVEL", e.ZstdLevel, 1, 22),
		env.Between("QUEEN_ADMISSION_POOL_RESERVE", e.PoolReserve, 0, 10000),
		env.MillisBetween("QUEEN_CACHE_REFRESH_INTERVAL_MS", e.CacheRefresh, time.Second, maxWait),
	)
}

// SettingsAge is how old the settings of a queue may be that somebody remembers.
func (e Engine) SettingsAge() time.Duration { return min(e.CacheRefresh, settingsMaxAge) }

// settingsMaxAge holds whatever the configuration says.
const settingsMaxAge = 30 * time.Second

// Slots is how many requests of the message plane may use the database at once.
// The reserve never takes more than half of a small pool.
func (c *Config) Slots() int {
	return c.Postgres.PoolSize - min(c.Engine.PoolReserve, c.Postgres.PoolSize/2)
}

// Validate checks the bounds of waiting.
func (f Flow) Validate() error {
	problems := []error{
		env.MillisBetween("DEFAULT_TIMEOUT", f.DefaultTimeout, time.Millisecond, maxWait),
		env.MillisBetween("POP_WAIT_INITIAL_INTERVAL_MS", f.InitialInterval, time.Millisecond, maxWait),
		env.MillisBetween("POP_WAIT_MAX_INTERVAL_MS", f.MaxInterval, time.Millisecond, maxWait),
		env.Between("POP_WAIT_BACKOFF_THRESHOLD", f.Threshold, 1, maxLooks),
		env.Between("QUEEN_MAX_PARKED_POPS", f.MaxParked, 1, maxParked),
		env.Between("QUEEN_SEGMENT_CACHE_MB", f.SegmentCacheMB, 0, maxMB),
	}
	if f.Multiplier < 1 || f.Multiplier > 1000 {
		problems = append(problems, &env.ValueError{
			Name: "POP_WAIT_BACKOFF_MULTIPLIER", Value: strconv.FormatFloat(f.Multiplier, 'g', -1, 64), Allowed: "a number between 1 and 1000",
		})
	}
	return errors.Join(problems...)
}

// Show logs the resolved values, one block a subsystem, and warns about what
// looks like a mistake.
func (c *Config) Show(ctx context.Context, log *slog.Logger) {
	env.Show(ctx, log, "server", &c.Server)
	env.Show(ctx, log, "operations", &c.Ops)
	env.Show(ctx, log, "postgres", &c.Postgres, c.Postgres.TrustAttrs()...)
	env.Show(ctx, log, "engine", &c.Engine, slog.Int(logging.KeySlots, c.Slots()))
	env.Show(ctx, log, "fusion", &c.Fusion)
	env.Show(ctx, log, "dedup", &c.Dedup)
	env.Show(ctx, log, "hotlist", &c.Hotlist)
	env.Show(ctx, log, "popFusion", &c.PopFusion)
	env.Show(ctx, log, "acks", &c.Acks)
	env.Show(ctx, log, "admission", &c.Budget)
	env.Show(ctx, log, "flow", &c.Flow)
	env.Show(ctx, log, "kv", &c.KV, slog.Int(logging.KeyConnections, c.KVPoolSize()))
	env.Show(ctx, log, "timers", &c.Timers)
	env.Show(ctx, log, "browse", &c.Browse)
	env.Show(ctx, log, "metrics", &c.Metrics)
	env.Show(ctx, log, "mesh", &c.Mesh, slog.Bool(logging.KeyOn, c.Mesh.On()))
	env.Show(ctx, log, "security", &c.Security)
	env.Show(ctx, log, "logging", &c.Logging)
	env.Show(ctx, log, "rates", &c.Rates)
	env.Show(ctx, log, "telemetry", &c.Telemetry)
	c.warn(ctx, log)
	env.WarnUnknown(ctx, log, os.Environ(), c)
}

func (c *Config) warn(ctx context.Context, log *slog.Logger) {
	c.Mesh.WarnOpen(ctx, log)
	if c.Security.EncryptionKey != "" {
		log.WarnContext(ctx, "this version does not encrypt payloads", slog.String(logging.KeyVariable, "QUEEN_ENCRYPTION_KEY"))
	}
	if c.KV.MaxReadBytes < kvReadBytes {
		log.WarnContext(ctx, "the bytes that a call may read are fixed in the database, at 4194304", slog.String(logging.KeyVariable, "QUEEN_KV_MAX_READ_BYTES"))
	}
	if os.Getenv("FILE_BUFFER_DIR") != "" {
		log.WarnContext(ctx, "this version has no disk spool", slog.String(logging.KeyVariable, "FILE_BUFFER_DIR"))
	}
	c.Postgres.WarnTrust(ctx, log)
}
