package pgdb

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queenmq/queen/pkg/config"
)

const urlVariable = "PG_URL"

// Modes of encryption that a URL may ask for. prefer and allow are none of them:
// whoever stands in the way decides there whether there is encryption.
const (
	modeDisable    = "disable"
	modeRequire    = "require"
	modeVerifyCA   = "verify-ca"
	modeVerifyFull = "verify-full"
)

// Parameters of a URL, of which urlParams are those that it may name.
const (
	paramHost     = "host"
	paramPort     = "port"
	paramUser     = "user"
	paramPassword = "password"
	paramDatabase = "dbname"
	paramMode     = "sslmode"
	paramRoots    = "sslrootcert"
	paramSession  = "target_session_attrs"
)

var urlParams = []string{
	paramHost, paramPort, paramUser, paramPassword, paramDatabase, paramMode, paramRoots, paramSession,
	"sslcert", "sslkey", "sslpassword", "sslnegotiation", "channel_binding", "connect_timeout",
}

// rootsSystem as sslrootcert trusts the authorities of the operating system.
const rootsSystem = "system"

// maxConnectTimeout leaves a caller the time for another server.
const maxConnectTimeout = time.Minute

// neutral is what a parameter is that the URL does not name. Without these the parser
// would take it from PGPASSWORD and its like, or from the home folder.
var neutral = map[string]string{
	paramPort: "5432", paramPassword: "", paramRoots: "", "passfile": "", "sslcert": "", "sslkey": "",
	"sslcertmode": "allow", "sslpassword": "", "sslsni": "1", "sslnegotiation": "", "channel_binding": "",
	"require_auth": "", "min_protocol_version": "", "max_protocol_version": "",
	"connect_timeout": strconv.Itoa(int(connectTimeout.Seconds())),
}

// target is what a URL leads to.
type target struct {
	conn  *pgx.ConnConfig
	mode  string // of encryption
	roots string // sslrootcert
}

// urlError shows nothing of the URL: it holds a password.
func urlError(allowed string) error {
	return &config.ValueError{Name: urlVariable, Value: "<hidden>", Allowed: allowed}
}

// parseURL has pgx parse the URL, once it is known to say all that is needed and
// nothing that would be without effect.
func (c Config) parseURL() (target, error) {
	text := strings.TrimRight(strings.TrimSpace(c.URL.Reveal()), "?&")
	params, err := scanURL(text)
	if err != nil {
		return target{}, err
	}
	mode, modeErr := c.urlMode(params)
	session, sessionErr := urlSession(params)
	if err := errors.Join(urlServer(params), modeErr, sessionErr); err != nil {
		return target{}, err
	}
	added := url.Values{paramMode: {mode}, paramSession: {session}}
	for name, value := range neutral {
		if _, given := params[name]; !given {
			added.Set(name, value)
		}
	}
	separator := "?"
	if strings.Contains(afterCredentials(text), "?") {
		separator = "&"
	}
	conn, err := pgx.ParseConfig(text + separator + added.Encode())
	if err != nil {
		return target{}, urlError(urlReason(err))
	}
	if conn.ConnectTimeout < time.Second || conn.ConnectTimeout > maxConnectTimeout {
		return target{}, urlError("only a connect_timeout between 1 and 60 seconds")
	}
	return target{conn: conn, mode: mode, roots: params[paramRoots]}, nil
}

// urlReason is what the parser has against a URL. Its own text shows the URL, and hides
// the password only as well as it finds it.
func urlReason(err error) string {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) && parse.Unwrap() != nil {
		return fmt.Sprintf("only a URL that can be used (%s)", parse.Unwrap())
	}
	return "only a URL with one port, or one for each host, between 1 and 65535, and a channel_binding of disable, prefer or require,"
}

// afterCredentials is what follows user and password, which end at the first @ before
// any slash.
func afterCredentials(text string) string {
	_, rest, _ := strings.Cut(text, "://")
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		return rest[i+1:]
	}
	return rest
}

// scanURL finds which parameters a URL names, whether before its question mark or
// after it.
func scanURL(text string) (map[string]string, error) {
	scheme, all, _ := strings.Cut(text, "://")
	if scheme != "postgres" && scheme != "postgresql" {
		return nil, urlError("only a URL that begins with postgres:// or postgresql://")
	}
	rest := afterCredentials(text)
	if strings.Contains(rest, "@") {
		return nil, urlError("only a URL whose user and password have @ as %40 and / as %2F")
	}
	user, password, _ := strings.Cut(strings.TrimSuffix(strings.TrimSuffix(all, rest), "@"), ":")
	rest, query, _ := strings.Cut(rest, "?")
	hosts, database, _ := strings.Cut(rest, "/")
	params := map[string]string{}
	for name, value := range map[string]string{paramUser: user, paramPassword: password, paramHost: hosts, paramDatabase: database} {
		if value != "" {
			params[name] = value
		}
	}
	// The ports of several hosts are a list, also where all of them are left out.
	if strings.Contains(hosts, ",") || strings.Contains(hosts[strings.LastIndexByte(hosts, ']')+1:], ":") {
		params[paramPort] = ""
	}
	return params, scanQuery(query, params)
}

// scanQuery adds the parameters behind the question mark.
func scanQuery(query string, params map[string]string) error {
	seen := map[string]bool{}
	if query == "" {
		return nil
	}
	for pair := range strings.SplitSeq(query, "&") {
		name, raw, _ := strings.Cut(pair, "=")
		value, err := url.PathUnescape(raw)
		switch {
		case !slices.Contains(urlParams, name):
			return urlError(fmt.Sprintf("no parameter %q: only %s", name, strings.Join(urlParams, ", ")))
		case seen[name]:
			return urlError(fmt.Sprintf("only one %s", name))
		case err != nil || value == "":
			return urlError(fmt.Sprintf("only a %s that says something", name))
		}
		seen[name] = true
		params[name] = value
	}
	return nil
}

// urlServer requires what the parser would otherwise make up.
func urlServer(params map[string]string) error {
	switch {
	case slices.Contains(urlHosts(params), ""):
		return urlError("only a URL that names a host (the folder of a socket as ?host=/folder)")
	case params[paramUser] == "" || params[paramDatabase] == "":
		return urlError("only a URL that names user and database, as in postgres://user:password@host:5432/database,")
	}
	return nil
}

func urlHosts(params map[string]string) []string { return strings.Split(params[paramHost], ",") }

// urlMode settles how a URL is encrypted. With an authority and no mode it is
// verify-full, without one it is disable.
func (c Config) urlMode(params map[string]string) (string, error) {
	mode, roots := params[paramMode], params[paramRoots]
	authority := roots != "" || c.SSLRootCert != ""
	switch {
	case roots != "" && c.SSLRootCert != "":
		return "", urlError("either sslrootcert or " + rootsVariable)
	case !slices.Contains([]string{"", modeDisable, modeRequire, modeVerifyCA, modeVerifyFull}, mode):
		return "", urlError("only an sslmode of disable, require, verify-ca or verify-full")
	case mode == modeDisable && authority:
		return "", urlError("no sslmode=disable with sslrootcert or " + rootsVariable)
	case roots == rootsSystem && mode != "" && mode != modeVerifyFull:
		return "", urlError("with sslrootcert=system only sslmode=verify-full")
	case mode == modeVerifyCA && !authority:
		return "", urlError("sslmode=verify-ca only with sslrootcert or " + rootsVariable)
	case mode == "" && authority:
		mode = modeVerifyFull
	case mode == "":
		mode = modeDisable
	case mode == modeRequire && authority:
		mode = modeVerifyCA // as libpq has it
	}
	if mode != modeDisable && slices.ContainsFunc(urlHosts(params), isSocket) {
		return "", urlError("with the folder of a socket only sslmode=disable")
	}
	return mode, nil
}

// isSocket tells the folder of a socket from a name or an address.
func isSocket(host string) bool {
	return strings.HasPrefix(host, "/") || strings.HasPrefix(strings.ToUpper(host), "%2F")
}

// urlSession settles which servers will do. Of several only one takes writes at a time.
func urlSession(params map[string]string) (string, error) {
	switch session := params[paramSession]; session {
	case "any", "primary", "read-write":
		return session, nil
	case "":
		if len(urlHosts(params)) > 1 {
			return "read-write", nil
		}
		return "any", nil
	}
	return "", urlError("only a target_session_attrs of read-write, primary or any")
}

// Resolve fills the parts from the URL, for whoever shows them; a URL that cannot be
// used is left to Validate.
func (c *Config) Resolve() {
	if c.URL == "" {
		return
	}
	t, err := c.parseURL()
	if err != nil {
		return
	}
	hosts := []string{t.conn.Host}
	for _, f := range t.conn.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	c.Host, c.Port = strings.Join(hosts, ","), int(t.conn.Port)
	c.User, c.Password, c.Database = t.conn.User, config.Secret(t.conn.Password), t.conn.Database
	c.UseSSL = t.mode != modeDisable
	c.SSLVerify = c.UseSSL && t.mode != modeRequire
}

// Address tells people where PostgreSQL is.
func (c Config) Address() string {
	hosts := strings.Split(c.Host, ",")
	ports := make([]int, len(hosts))
	for i := range ports {
		ports[i] = c.Port
	}
	if c.URL != "" {
		if t, err := c.parseURL(); err == nil && len(t.conn.Fallbacks) == len(hosts)-1 {
			for i, f := range t.conn.Fallbacks {
				ports[i+1] = int(f.Port)
			}
		}
	}
	for i, host := range hosts {
		hosts[i] = net.JoinHostPort(host, strconv.Itoa(ports[i]))
	}
	return strings.Join(hosts, ",")
}
