package cluster_test

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed testdata/postgres.yaml
var postgresManifest string

// Roles, which are also the names of their secrets, and databases.
const (
	owner   = "queen-owner"
	runtime = "queen-runtime"

	mainDatabase  = "queen"
	freshDatabase = "fresh"
)

// startPostgres starts a server with two databases, a role that owns them, and one that
// owns nothing and may create nothing.
func (c *cluster) startPostgres(t *testing.T) {
	t.Helper()
	c.feed(t, strings.ReplaceAll(postgresManifest, "${IMAGE}", c.postgres), "apply", "--filename", "-")
	c.kube(t, "wait", "--for=condition=Ready", "pod/postgres", "--timeout=5m")
	version := c.sql(t, "postgres", "SHOW server_version")
	c.say(t, "PostgreSQL %s is ready", version)
	c.sql(t, "postgres", fmt.Sprintf("CREATE ROLE %q LOGIN PASSWORD 'owner'; CREATE ROLE %q LOGIN PASSWORD 'runtime'", owner, runtime))
	for _, database := range []string{mainDatabase, freshDatabase} {
		c.sql(t, "postgres", fmt.Sprintf("CREATE DATABASE %s OWNER %q", database, owner))
		for role, password := range map[string]string{owner: "owner", runtime: "runtime"} {
			c.databaseSecret(t, database, role, password)
		}
	}
}

// databaseSecret makes a secret as CloudNativePG does.
func (c *cluster) databaseSecret(t *testing.T, database, role, password string) {
	t.Helper()
	c.apply(t, corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: secretOf(database, role)},
		StringData: map[string]string{
			"uri":  fmt.Sprintf("postgresql://%s:%s@postgres.%s:5432/%s", role, password, c.namespace, database),
			"host": "postgres", "port": "5432", "dbname": database, "user": role, "password": password,
		},
	})
}

func secretOf(database, role string) string { return database + "-" + role }

// sql runs statements as the superuser and answers what they select, a line for each row.
func (c *cluster) sql(t *testing.T, database, statements string) string {
	t.Helper()
	out := c.feed(t, statements, "exec", "--stdin", "postgres", "--",
		"psql", "--username=postgres", "--dbname="+database, "--no-align", "--tuples-only", "--quiet", "--set=ON_ERROR_STOP=1")
	return strings.TrimSpace(out)
}

// requireRuntimeCannotDefine requires that the role of the services may change no schema.
func (c *cluster) requireRuntimeCannotDefine(t *testing.T, database string) {
	t.Helper()
	may := c.sql(t, database, fmt.Sprintf(`SELECT has_database_privilege('%[1]s', current_database(), 'CREATE')
		OR has_schema_privilege('%[1]s', 'queen', 'CREATE')
		OR EXISTS (SELECT FROM pg_class WHERE relowner = '"%[1]s"'::regrole)`, runtime))
	require.Equal(t, "f", may, "the role of the services may create something, or owns something")
}

// rolesOf are the roles of the sessions of a database, other than this test's.
func (c *cluster) rolesOf(t *testing.T, database string) string {
	t.Helper()
	return c.sql(t, "postgres", fmt.Sprintf(`SELECT DISTINCT usename FROM pg_stat_activity
		WHERE datname = '%s' AND backend_type = 'client backend' ORDER BY 1`, database))
}
