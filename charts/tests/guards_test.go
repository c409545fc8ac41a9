package charttests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/charts/tests/internal/helm"
)

// Both sides of each limit: what just fits is rendered, one more is refused, and the
// message names the values to change.
func TestLimitsHaveTwoSides(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		beside      []string // values on both sides
		fits, fails string
		advice      []string
	}{
		// 4 x (10 + 4) of brokers, 3 x (4 + 1) of maintainers, 3 x 4 of sweepers: 83, and a tenth in reserve.
		"connections": {fits: "database.maxConnections=93", fails: "database.maxConnections=92", advice: []string{
			"together    83", "available   82 (database.maxConnections 92 less a tenth in reserve, 10)",
			"database.maxConnections=<max_connections of the server>", "broker.autoscaling.maxReplicas", "broker.poolSize", "broker.keyValuePoolSize", "maintainer.poolSize", "sweeper.poolSize",
		}},
		"connections by pods": {beside: []string{"database.maxConnections=109"}, fits: "broker.autoscaling.maxReplicas=4", fails: "broker.autoscaling.maxReplicas=5", advice: []string{
			"broker      (5 pods + 1 during an update) x (10 + 4 for keys and timers) = 84",
		}},
		"connections by pool": {beside: []string{"database.maxConnections=97"}, fits: "broker.poolSize=11", fails: "broker.poolSize=12", advice: []string{"broker.poolSize"}},
		"connections of keys": {beside: []string{"database.maxConnections=97"}, fits: "broker.keyValuePoolSize=5", fails: "broker.keyValuePoolSize=6", advice: []string{"broker.keyValuePoolSize"}},
		"connections of the schema job": {beside: []string{"schema.mode=job"}, fits: "database.maxConnections=96", fails: "database.maxConnections=95", advice: []string{
			"schema      1 job x (2 + 1 for the schema's lock) = 3",
		}},
		"connections of scaled sweepers": {beside: []string{"sweeper.autoscaling.enabled=true", "database.maxConnections=101"}, fits: "sweeper.autoscaling.maxReplicas=3", fails: "sweeper.autoscaling.maxReplicas=5", advice: []string{
			"sweeper     (5 pods + 1 during an update) x 4 = 24",
		}},
		"connections without surge": {beside: []string{"broker.strategy.type=Recreate"}, fits: "database.maxConnections=77", fails: "database.maxConnections=76", advice: []string{
			"broker      (3 pods + 0 during an update)",
		}},
		"connections of a share of surge pods": {beside: []string{"broker.strategy.rollingUpdate.maxSurge=34%"}, fits: "database.maxConnections=108", fails: "database.maxConnections=107", advice: []string{
			"broker      (3 pods + 2 during an update)",
		}},
		"memory": {fits: "broker.resources.limits.memory=1501Mi", fails: "broker.resources.limits.memory=1500Mi", advice: []string{
			"= 1501 MiB", "Set broker.resources.limits.memory to at least 1501Mi", "broker.memory.dedupCacheMiB", "broker.memory.requestBodiesMiB",
		}},
		"memory by caches": {beside: []string{"broker.resources.limits.memory=2Gi"}, fits: "broker.memory.dedupCacheMiB=1059", fails: "broker.memory.dedupCacheMiB=1060", advice: []string{
			"more than its limit of 2048 MiB",
		}},
		"memory in other units": {fits: "broker.resources.limits.memory=1573912576", fails: "broker.resources.limits.memory=1573912575", advice: []string{
			"more than its limit of 1500 MiB",
		}},
		"pods to replace": {fits: "broker.strategy.rollingUpdate.maxUnavailable=0", fails: "broker.strategy.rollingUpdate.maxSurge=0", advice: []string{
			"Set broker.strategy.rollingUpdate.maxSurge or maxUnavailable to 1",
		}},
		"memory to ask for": {fits: "broker.resources.requests.memory=2Gi", fails: "broker.resources.requests.memory=2049Mi", advice: []string{
			"requests.memory is 2049Mi and limits.memory 2Gi", "Raise broker.resources.limits.memory",
		}},
		"a port for hints":      {fits: "hints.port=6641", fails: "hints.port=6640", advice: []string{"where brokers serve operations", "hints.port=6633"}},
		"a port that is unused": {beside: []string{"hints.port=6632"}, fits: "hints.enabled=false", fails: "hints.enabled=true", advice: []string{"where brokers serve clients"}},
		"body":                  {fits: "broker.maxBodyMiB=256", fails: "broker.maxBodyMiB=257", advice: []string{"broker.memory.requestBodiesMiB 256"}},
		"grace": {fits: "broker.terminationGracePeriodSeconds=30", fails: "broker.terminationGracePeriodSeconds=29", advice: []string{
			"shutdown.delaySeconds 5 + shutdown.timeoutSeconds 25 = 30", "Set broker.terminationGracePeriodSeconds to at least 30",
		}},
		"grace of maintainers": {fits: "maintainer.terminationGracePeriodSeconds=25", fails: "maintainer.terminationGracePeriodSeconds=24", advice: []string{
			"Set maintainer.terminationGracePeriodSeconds to at least 25",
		}},
		"grace by delay":   {beside: []string{"broker.terminationGracePeriodSeconds=40"}, fits: "broker.shutdown.delaySeconds=15", fails: "broker.shutdown.delaySeconds=16", advice: []string{"at least 41"}},
		"replicas":         {fits: "broker.replicas=3", fails: "broker.replicas=4", advice: []string{"broker.autoscaling.maxReplicas is 3", "broker.autoscaling.enabled=false"}},
		"default of polls": {fits: "broker.longPoll.defaultSeconds=60", fails: "broker.longPoll.defaultSeconds=61", advice: []string{"broker.longPoll.maxSeconds 60"}},
		"ingress timeout": {beside: []string{"ingress.enabled=true"}, fits: "ingress.timeoutSeconds=61", fails: "ingress.timeoutSeconds=60", advice: []string{
			"Set ingress.timeoutSeconds to more than 60", "broker.longPoll.maxSeconds",
		}},
		"route timeout": {beside: []string{"gateway.enabled=true", "gateway.parentRefs[0].name=g"}, fits: "gateway.timeoutSeconds=61", fails: "gateway.timeoutSeconds=60", advice: []string{
			"Set gateway.timeoutSeconds to more than 60",
		}},
		"a spool's volume":    {beside: []string{"spool.enabled=true"}, fits: "spool.volume.size=1Gi", fails: "spool.volume.size=", advice: []string{"set spool.volume.size", "spool.enabled=false"}},
		"a gateway's parents": {beside: []string{"gateway.enabled=true"}, fits: "gateway.parentRefs[0].name=g", fails: "gateway.hostnames[0]=h", advice: []string{"gateway.parentRefs[0].name=my-gateway"}},
		"a token's key":       {beside: []string{"auth.enabled=true"}, fits: "auth.existingSecret=y", fails: "auth.existingSecret=", advice: []string{"Set auth.existingSecret", "auth.jwks.url"}},
		"a proxy for tenants": {beside: []string{"tenancy.header=true"}, fits: "tenancy.trustedProxy=true", fails: "tenancy.trustedProxy=false", advice: []string{"tenancy.trustedProxy=true"}},
		"metrics to scale by": {beside: []string{"broker.autoscaling.targetMemoryPercent=80"}, fits: "broker.autoscaling.targetCPUPercent=70", fails: "broker.resources.requests.memory=null", advice: []string{"Set broker.resources.requests.memory"}},
		"variables of the chart's own": {fits: "broker.config.QUEEN_V2_ZSTD_LEVEL=4", fails: "broker.config.DB_POOL_SIZE=50", advice: []string{
			"which the chart sets itself", "Use broker.poolSize",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			beside := append([]string{"database.existingSecret=x"}, c.beside...)
			_, err := helm.Rendering{Values: helm.Values{Set: append(beside[:len(beside):len(beside)], c.fits)}}.Template()
			require.NoError(t, err)
			_, err = helm.Rendering{Values: helm.Values{Set: append(beside, c.fails)}}.Template()
			require.Error(t, err, c.fails)
			require.NotContains(t, err.Error(), refusedBySchema)
			for _, advice := range c.advice {
				require.ErrorContains(t, err, advice)
			}
		})
	}
}

// What contradicts itself is refused, with both names.
func TestContradictionsAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set    []string
		advice string
	}{
		"no database":               {nil, "--set database.existingSecret=queen-database"},
		"secret and url":            {[]string{"database.existingSecret=x", "database.url=postgres://u:p@h/d"}, "database.existingSecret and database.url"},
		"url and host":              {[]string{"database.url=postgres://u:p@h/d", "database.host=h"}, "database.url is set beside database.host"},
		"no url of PostgreSQL":      {[]string{"database.url=mysql://u:p@h/d"}, "begins with postgres://"},
		"host without password":     {[]string{"database.host=h"}, "database.secretKeys.password"},
		"TLS beside a url":          {[]string{"database.existingSecret=x", "database.tls.enabled=true"}, "sslmode=verify-full"},
		"job without secret":        {[]string{"database.url=postgres://u:p@h/d", "schema.mode=job"}, "schema.job.database.existingSecret"},
		"secret without job":        {[]string{"database.existingSecret=x", "schema.job.database.existingSecret=y"}, "Set schema.mode=job"},
		"role without anybody":      {[]string{"database.existingSecret=x", "schema.mode=none", "schema.runtimeRole=r"}, "schema.runtimeRole"},
		"probe shorter than a wait": {[]string{"database.existingSecret=x", "defaults.probes.startup.failureThreshold=2"}, "probes.startup.failureThreshold"},
		"port of nodes without one": {[]string{"database.existingSecret=x", "service.nodePort=30001"}, "Set service.type=NodePort or LoadBalancer"},
		"balancer without one":      {[]string{"database.existingSecret=x", "service.type=NodePort", "service.loadBalancerClass=c"}, "Set service.type=LoadBalancer"},
		"Ingress to nowhere":        {[]string{"database.existingSecret=x", "ingress.enabled=true", "ingress.hosts=null"}, "ingress.hosts[0].host"},
		"a variable set twice":      {[]string{"database.existingSecret=x", "broker.config.A=1", "broker.extraEnv[0].name=A"}, "both set A"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := helm.Rendering{Values: helm.Values{Set: c.set}}.Template()
			require.ErrorContains(t, err, c.advice)
			require.NotContains(t, err.Error(), refusedBySchema)
		})
	}
}
