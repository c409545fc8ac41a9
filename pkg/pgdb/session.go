package pgdb

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// serverMargin is how much later than our own deadline the server's is: it acts
// only when ours could not reach the server.
const serverMargin = 5 * time.Second

// clientMargin is how much later our own deadline is than one that the server keeps.
const clientMargin = time.Second

// checkInterval lets the server notice, in the middle of a statement, that its
// client is gone. Platforms without POLLRDHUP refuse it; the keepalives and the
// statement timeout then bound the time alone.
const checkInterval = "SET client_connection_check_interval = '2s';"

// sessionSettings is what every session needs: UTC, so that procedures format
// times as the wire shows them; keepalives, so that a dead client frees its
// locks (a Unix socket ignores them); and limits of the server's own.
func (c Config) sessionSettings() string {
	var b strings.Builder
	b.WriteString("SET TimeZone = 'UTC';")
	fmt.Fprintf(&b, "SET tcp_keepalives_idle = %d; SET tcp_keepalives_interval = %d; SET tcp_keepalives_count = %d;",
		int(keepaliveIdle.Seconds()), int(keepaliveInterval.Seconds()), keepaliveCount)
	b.WriteString("SET idle_in_transaction_session_timeout = '10s';")
	_, server := c.limits()
	fmt.Fprintf(&b, "SET statement_timeout = %d;", server.Milliseconds())
	if c.EmptiedSearchPath {
		b.WriteString("SET search_path = '';")
	}
	return b.String()
}

// prepareSession applies the settings in one round trip.
func (c Config) prepareSession(ctx context.Context, conn *pgx.Conn) error {
	acceptArrays(conn)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := set(ctx, conn, c.sessionSettings(), checkInterval); err != nil {
		return fmt.Errorf("set session parameters: %w", err)
	}
	return nil
}

// set applies both texts, or only the first where the server does not know the
// value of the optional one. The texts are one transaction: a refusal undoes all.
func set(ctx context.Context, conn *pgx.Conn, required, optional string) error {
	_, err := conn.PgConn().Exec(ctx, required+optional).ReadAll()
	if sqlState(err) == codeInvalidParameter {
		_, err = conn.PgConn().Exec(ctx, required).ReadAll()
	}
	return err
}
