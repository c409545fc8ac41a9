package charttests

import (
	"encoding/base64"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/queenmq/queen/charts/tests/internal/helm"
	"github.com/queenmq/queen/charts/tests/internal/manifest"
)

var update = flag.Bool("update", false, "write testdata/notes anew, from what the chart says now")

// What Helm says after an installation, word for word.
func TestNotesSayWhatWasInstalled(t *testing.T) {
	t.Parallel()
	server := helm.NewServer(t, "1.37", nil)
	file := func(name string) helm.Values {
		return helm.Values{Files: []string{filepath.Join(helm.ChartDir, "ci", name+"-values.yaml")}}
	}
	for name, values := range map[string]helm.Values{
		"defaults": {Set: []string{"database.existingSecret=x"}},
		"trial":    {Set: []string{"database.url=postgres://u:p@queen-pgbouncer:6432/queen"}},
		"job":      file("job"), "none": file("none"), "spool": file("spool"), "edge": file("edge"),
		"monitoring": file("monitoring"), "brokers-only": file("brokers-only"), "full": file("full"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := notes(t, server, values)
			golden := filepath.Join("testdata", "notes", name+".txt")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o750))
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), got, "go test ./charts/tests -run Notes -update writes what it should be anew")
		})
	}
}

func TestTheDefaultsWarnOfNothing(t *testing.T) {
	t.Parallel()
	server := helm.NewServer(t, "1.37", nil)
	require.NotContains(t, notes(t, server, helm.Values{Set: []string{"database.existingSecret=x"}}), "WARNING")
}

// What somebody should know before it hurts, each with the value that brings it up.
func TestNotesWarn(t *testing.T) {
	t.Parallel()
	server := helm.NewServer(t, "1.37", nil)
	for name, c := range map[string]struct {
		set     []string
		warning string
	}{
		"of a password among the values": {[]string{"database.url=postgres://u:p@h/d?sslmode=require"}, "in the record of the release"},
		"of poolers":                     {[]string{"database.url=postgres://u:p@h:6432/d?sslmode=require"}, "has to pool sessions"},
		"of plain connections":           {[]string{"database.url=postgres://u:p@h/d"}, "not bound to be encrypted"},
		"of no maintainer":               {[]string{"database.existingSecret=x", "maintainer.enabled=false"}, "nothing is ever deleted"},
		"of no sweeper":                  {[]string{"database.existingSecret=x", "sweeper.enabled=false"}, "timers wait"},
		"of tokens":                      {[]string{"database.existingSecret=x", "auth.enabled=true", "auth.existingSecret=y"}, "auth.enabled needs a broker that supports it"},
		"of encryption":                  {[]string{"database.existingSecret=x", "encryption.existingSecret=y"}, "stores plain text"},
		"of a spool":                     {[]string{"database.existingSecret=x", "spool.enabled=true", "spool.volume.size=1Gi"}, "does not use the volume"},
		"of plain HTTP":                  {[]string{"database.existingSecret=x", "ingress.enabled=true"}, "has no TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := notes(t, server, helm.Values{Set: c.set})
			require.Contains(t, text, "WARNING")
			require.Contains(t, text, c.warning)
		})
	}
}

// The key for hints is made once: an upgrade finds it in the cluster, or running pods
// would no longer understand new ones.
func TestTheKeyForHintsSurvivesUpgrades(t *testing.T) {
	t.Parallel()
	kept := base64.StdEncoding.EncodeToString([]byte("kept since the installation"))
	fresh := helm.NewServer(t, "1.37", nil)
	old := helm.NewServer(t, "1.37", map[string]string{
		"/api/v1/namespaces/default/secrets/queen-hints": `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"queen-hints","namespace":"default",` +
			`"labels":{"app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"queen","meta.helm.sh/release-namespace":"default"}},` +
			`"data":{"gossip-key":"` + kept + `"}}`,
	})
	values := helm.Values{Set: []string{"database.existingSecret=x"}}
	require.Equal(t, "kept since the installation", string(hintsKey(t, old, values)))
	first, second := hintsKey(t, fresh, values), hintsKey(t, fresh, values)
	require.GreaterOrEqual(t, len(first), 32)
	require.NotEqual(t, first, second, "a key that can be foreseen is none")
}

func hintsKey(t *testing.T, server *helm.Server, values helm.Values) []byte {
	t.Helper()
	text, err := server.Install(helm.Rendering{Values: values})
	require.NoError(t, err)
	_, text, _ = strings.Cut(text, "\nMANIFEST:\n")
	text, _, _ = strings.Cut(text, "\nNOTES:\n")
	objects, err := manifest.Parse(text)
	require.NoError(t, err)
	for _, secret := range manifest.All[*corev1.Secret](objects) {
		if secret.Name == "queen-hints" {
			return secret.Data["gossip-key"]
		}
	}
	require.Fail(t, "no secret for hints")
	return nil
}

func notes(t *testing.T, server *helm.Server, values helm.Values) string {
	t.Helper()
	text, err := server.Install(helm.Rendering{Values: values})
	require.NoError(t, err)
	_, found, ok := strings.Cut(text, "\nNOTES:\n")
	require.True(t, ok, text)
	return found
}
