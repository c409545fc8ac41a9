package pgdb

import (
	"context"
	"log/slog"

	"github.com/queenmq/queen/pkg/logging"
)

// What a certificate of the server is checked against.
const (
	trustNobody   = "plaintext"
	trustSupplied = "supplied-ca"
	trustAny      = "accept-any"
	trustSystem   = "system-roots"
)

const variableVerify = "PG_SSL_REJECT_UNAUTHORIZED"

func (c Config) trust() (name string, verified bool) {
	switch {
	case !c.UseSSL:
		return trustNobody, false
	case c.SSLRootCert != "":
		return trustSupplied, true
	case !c.SSLVerify:
		return trustAny, false
	}
	return trustSystem, true
}

// TrustAttrs tells the log whom the connection trusts.
func (c Config) TrustAttrs() []slog.Attr {
	trust, verified := c.trust()
	return []slog.Attr{slog.String(logging.KeySSLTrust, trust), slog.Bool(logging.KeySSLVerified, verified)}
}

// WarnTrust logs settings of the encryption that an operator may not mean.
func (c Config) WarnTrust(ctx context.Context, log *slog.Logger) {
	trust, _ := c.trust()
	switch {
	case trust == trustAny:
		log.WarnContext(ctx, "any certificate of PostgreSQL is accepted", slog.String(logging.KeyVariable, variableVerify))
	case trust == trustSupplied && !c.SSLVerify:
		log.WarnContext(ctx, "certificates are verified against the given CA in spite of this variable",
			slog.String(logging.KeyVariable, variableVerify))
	}
}
