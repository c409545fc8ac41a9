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
	supplied := c.SSLRootCert != ""
	if t, err := c.parseURL(); c.URL != "" && err == nil {
		supplied = supplied || t.roots != "" && t.roots != rootsSystem
	}
	switch {
	case !c.UseSSL:
		return trustNobody, false
	case supplied:
		return trustSupplied, true
	case !c.SSLVerify:
		return trustAny, false
	}
	return trustSystem, true
}

// TrustAttrs tells the log whom the connection trusts, and which servers a URL names.
func (c Config) TrustAttrs() []slog.Attr {
	trust, verified := c.trust()
	attrs := []slog.Attr{slog.String(logging.KeySSLTrust, trust), slog.Bool(logging.KeySSLVerified, verified)}
	if c.URL != "" {
		attrs = append(attrs, slog.String(logging.KeyAddr, c.Address()))
	}
	return attrs
}

// WarnTrust logs settings of the encryption that an operator may not mean.
func (c Config) WarnTrust(ctx context.Context, log *slog.Logger) {
	trust, _ := c.trust()
	switch {
	case trust == trustAny:
		variable := variableVerify
		if c.URL != "" {
			variable = urlVariable // sslmode=require
		}
		log.WarnContext(ctx, "any certificate of PostgreSQL is accepted", slog.String(logging.KeyVariable, variable))
	case trust == trustSupplied && !c.SSLVerify:
		log.WarnContext(ctx, "certificates are verified against the given CA in spite of this variable",
			slog.String(logging.KeyVariable, variableVerify))
	}
}
