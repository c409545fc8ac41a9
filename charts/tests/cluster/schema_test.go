package cluster_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
)

// byJob are the values with which a job applies the schema as the owner, and the services
// run as a role that may only use it.
func byJob(database string) []string {
	return []string{
		"schema.mode=job", "schema.runtimeRole=" + runtime,
		"schema.job.database.existingSecret=" + secretOf(database, owner),
		"database.existingSecret=" + secretOf(database, runtime),
	}
}

// testSchemaJob takes the right to define anything from the services, while they work.
func testSchemaJob(t *testing.T, r *release) {
	l := r.startLoad(t, r, "schema", steady)
	r.database = byJob(mainDatabase)
	r.upgrade(t)
	l.finish(t)
	r.requireRunsAsRuntime(t, mainDatabase)
	r.test(t)
}

// requireRunsAsRuntime requires that the job is done and gone, and that nobody is left who
// may define anything.
func (r *release) requireRunsAsRuntime(t *testing.T, database string) {
	t.Helper()
	require.Empty(t, get[batchv1.JobList](t, r.cluster, "jobs").Items, "a job that has succeeded is deleted")
	r.requireRuntimeCannotDefine(t, database)
	require.Equal(t, runtime, r.rolesOf(t, database))
	r.say(t, "all sessions of the database %s are of %s, which may define nothing", database, runtime)
}

// testSecondInstallation installs another release beside the first, into an empty
// database, which is given in parts; brokers are scaled from the start, as by default. It
// keeps to itself, and so does the first.
func testSecondInstallation(t *testing.T, first *release) {
	r := &release{cluster: first.cluster, name: "fresh", database: append(byJob(freshDatabase), "database.secretKeys.uri=")}
	r.install(t, "broker.autoscaling.enabled=true")
	r.requireLeastBrokers(t)
	r.requireRunsAsRuntime(t, freshDatabase)
	r.requireOneMesh(t)
	first.requireOneMesh(t)
	r.test(t)
	lanes := r.sql(t, mainDatabase, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE datname = '%s'", freshDatabase))
	require.NotEqual(t, "0", lanes)
	testUninstall(t, r)
	first.requireHealthy(t)
}
