package pgdb

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq/queen/pkg/config"
)

const rootsVariable = "PG_SSL_ROOT_CERT"

// tlsConfig is nil for plain text. A given CA is the only one trusted, and
// switches verification on whatever SSLVerify says.
func (c Config) tlsConfig() (*tls.Config, error) {
	if !c.UseSSL {
		return nil, nil
	}
	roots, err := c.roots()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		ServerName: c.Host, RootCAs: roots, MinVersion: tls.VersionTLS12,
		// The operator asked for encryption without identity.
		InsecureSkipVerify: roots == nil && !c.SSLVerify,
	}, nil
}

// urlConfig is tlsConfig for every server of the URL: the modes are pgx's, the given
// certificates take the place of the operating system's.
func (c Config) urlConfig() (*pgx.ConnConfig, error) {
	t, err := c.parseURL()
	if err != nil {
		return nil, err
	}
	roots, err := c.roots()
	if err != nil {
		return nil, err
	}
	configs := []*tls.Config{t.conn.TLSConfig}
	for _, f := range t.conn.Fallbacks {
		configs = append(configs, f.TLSConfig)
	}
	for _, tc := range configs {
		if tc == nil {
			continue
		}
		tc.MinVersion = tls.VersionTLS12
		if roots != nil {
			tc.RootCAs = roots
		}
	}
	return t.conn, nil
}

// roots reads the given certificates. Every PEM block must be a certificate:
// one that is silently left out would show as a refused connection much later.
func (c Config) roots() (*x509.CertPool, error) {
	if c.SSLRootCert == "" {
		return nil, nil
	}
	// Environment files often hold line breaks as the two characters \n.
	text := strings.ReplaceAll(c.SSLRootCert, `\n`, "\n")
	blocks := strings.Count(text, "-----BEGIN ")
	if blocks == 0 {
		return nil, rootsProblem("the content of PEM certificates, not a path,")
	}
	pool := x509.NewCertPool()
	for rest := []byte(text); blocks > 0; blocks-- {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, rootsProblem("only complete PEM blocks with base64 content")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			return nil, rootsProblem("only PEM blocks that hold certificates")
		}
		pool.AddCert(cert)
	}
	return pool, nil
}

// rootsProblem shows no content: what was pasted by mistake may be a key.
func rootsProblem(allowed string) error {
	return &config.ValueError{Name: rootsVariable, Value: "...", Allowed: allowed}
}
