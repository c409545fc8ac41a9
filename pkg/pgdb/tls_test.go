package pgdb

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newCert is a self-signed certificate for 127.0.0.1 and its key, as PEM.
func newCert(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
}

func TestWhomTLSTrusts(t *testing.T) {
	t.Parallel()
	ca, _ := newCert(t)
	for name, tc := range map[string]struct {
		ssl, verify bool
		ca          string
		want        string
	}{
		"plain":                   {verify: true, ca: ca, want: "plain"},
		"system roots":            {ssl: true, verify: true, want: "system"},
		"any certificate":         {ssl: true, want: "any"},
		"given CA":                {ssl: true, verify: true, ca: ca, want: "ca"},
		"given CA beats the flag": {ssl: true, ca: ca, want: "ca"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := valid()
			c.UseSSL, c.SSLVerify, c.SSLRootCert = tc.ssl, tc.verify, tc.ca
			got, err := c.tlsConfig()
			require.NoError(t, err)
			if tc.want == "plain" {
				require.Nil(t, got)
				return
			}
			require.Equal(t, "h", got.ServerName)
			require.Equal(t, tc.want == "any", got.InsecureSkipVerify)
			require.Equal(t, tc.want == "ca", got.RootCAs != nil)
		})
	}
}

func TestRootCertificates(t *testing.T) {
	t.Parallel()
	one, key := newCert(t)
	two, _ := newCert(t)
	for name, text := range map[string]string{
		"bundle":         "# first\n" + one + "\n# second\n" + two,
		"escaped breaks": strings.ReplaceAll(one, "\n", `\n`),
	} {
		pool, err := Config{SSLRootCert: text}.roots()
		require.NoError(t, err, name)
		require.NotNil(t, pool, name)
	}
	for name, text := range map[string]string{
		"blank":            " ",
		"path":             "/etc/ssl/certs/ca.pem",
		"not base64":       "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n",
		"unterminated":     strings.TrimSuffix(strings.TrimSpace(one), "-----END CERTIFICATE-----"),
		"second is broken": one + two[:len(two)/2],
		"a key":            key,
		"no certificate":   "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
	} {
		_, err := Config{SSLRootCert: text}.roots()
		require.ErrorContains(t, err, "PG_SSL_ROOT_CERT", name)
		require.NotContains(t, err.Error(), "AAAA", name)
	}
}
