{{/* Settings that cannot work end the rendering, each with what to change. */}}
{{- define "queen.guards" -}}
{{- include "queen.guard.names" . -}}
{{- include "queen.guard.ports" . -}}
{{- include "queen.guard.database" . -}}
{{- include "queen.guard.schema" . -}}
{{- include "queen.guard.spool" . -}}
{{- include "queen.guard.guards" . -}}
{{- include "queen.guard.service" . -}}
{{- range $name := include "queen.services" . | fromJsonArray -}}
{{- $ctx := dict "root" $ "name" $name "set" (include "queen.settings" (dict "root" $ "name" $name) | fromJson) -}}
{{- include "queen.guard.replicas" $ctx -}}
{{- include "queen.guard.strategy" $ctx -}}
{{- include "queen.guard.grace" $ctx -}}
{{- include "queen.guard.startup" $ctx -}}
{{- include "queen.guard.requests" $ctx -}}
{{- include "queen.guard.variables" $ctx -}}
{{- if eq $name "broker" -}}
{{- include "queen.guard.memory" $ctx -}}
{{- include "queen.guard.polls" $ctx -}}
{{- end -}}
{{- end -}}
{{- include "queen.guard.connections" . -}}
{{- end -}}

{{/* Everything is named after it, and Services take the least: no dots, and a letter first.
Helm and values.schema.json see to small letters. */}}
{{- define "queen.guard.names" -}}
{{- $name := include "queen.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (lower $name)) -}}
{{- fail (printf "\n\nObjects would be named after %q, and Services take small letters, digits and dashes, with a letter first. Set fullnameOverride, such as --set fullnameOverride=queen, or choose another name for the release.\n" $name) -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.ports" -}}
{{- $port := int .Values.hints.port -}}
{{- range $what, $taken := dict "brokers serve clients" 6632 "brokers serve operations" 6640 "sweepers serve operations" 6642 -}}
{{- if and $.Values.hints.enabled (eq $port $taken) -}}
{{- fail (printf "\n\nhints.port is %d, where %s: pods could not start. Set another one, such as hints.port=6633.\n" $port $what) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.database" -}}
{{- with .Values.database -}}
{{- if not (or .existingSecret .url .host) -}}
{{- fail "\n\nNo database is named. Queen keeps everything in PostgreSQL 15 or newer.\n\n- Create a secret with its URL and name it, as CloudNativePG does with <cluster>-app:\n    kubectl create secret generic queen-database --from-literal=uri='postgres://user:password@host:5432/queen'\n    --set database.existingSecret=queen-database\n- Only for a trial: --set database.url='postgres://user:password@host:5432/queen'\n" -}}
{{- end -}}
{{- if and .existingSecret (or .url .password) -}}
{{- fail "\n\ndatabase.existingSecret and database.url or database.password are both set, and only one can hold the password. Remove the value; the secret is the safe place.\n" -}}
{{- end -}}
{{- if and .url (or .host .name .user .password .port) -}}
{{- fail "\n\ndatabase.url is set beside database.host, port, name, user or password. A URL says all of it: remove one or the other.\n" -}}
{{- end -}}
{{- if and .url (not (regexMatch "^postgres(ql)?://" .url)) -}}
{{- fail "\n\ndatabase.url is no URL of PostgreSQL: it begins with postgres://.\n" -}}
{{- end -}}
{{- if and .tls.enabled (not (include "queen.database.parts" $)) -}}
{{- fail "\n\ndatabase.tls.enabled is for a host that is given in parts, and the database is given by a URL. Say it there (sslmode=verify-full), or name the authority in database.tls.caSecret.name, which has the certificate verified.\n" -}}
{{- end -}}
{{- if and .host (not .existingSecret) (not (and .name .user .password)) -}}
{{- fail "\n\ndatabase.host is set without database.existingSecret. Name a secret that has the password (key database.secretKeys.password), or, only for a trial, set database.name, database.user and database.password.\n" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.schema" -}}
{{- if and (eq .Values.schema.mode "job") (not (or .Values.schema.job.database.existingSecret .Values.database.existingSecret)) -}}
{{- fail "\n\nschema.mode is job, and neither schema.job.database.existingSecret nor database.existingSecret is set. The job runs before anything that the chart makes exists, so its credentials have to be in a secret of yours. Name one, or set schema.mode=boot.\n" -}}
{{- end -}}
{{- if and .Values.schema.job.database.existingSecret (ne .Values.schema.mode "job") -}}
{{- fail (printf "\n\nschema.job.database.existingSecret is set with schema.mode=%s, which has no job that would use it. Set schema.mode=job, or leave the secret out.\n" .Values.schema.mode) -}}
{{- end -}}
{{- if and .Values.schema.runtimeRole (eq .Values.schema.mode "none") -}}
{{- fail "\n\nschema.runtimeRole is set with schema.mode=none: nobody is there who would grant it anything. Set schema.mode=job, or pass QUEEN_RUNTIME_ROLE to the `broker migrate` that you run.\n" -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.spool" -}}
{{- if and .Values.spool.enabled (not .Values.spool.volume.size) -}}
{{- fail "\n\nspool.enabled is set without a volume. What is spooled must survive its pod: set spool.volume.size, such as 5Gi (and spool.volume.storageClassName, if not that of the cluster), or spool.enabled=false.\n" -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.guards" -}}
{{- with .Values.auth -}}
{{- $key := ternary .secretKeys.secret .secretKeys.publicKey (hasPrefix "HS" .algorithm) -}}
{{- if eq .algorithm "auto" }}{{ $key = or .secretKeys.secret .secretKeys.publicKey }}{{ end -}}
{{- if and .enabled (not (and .existingSecret $key)) (or (hasPrefix "HS" .algorithm) (not .jwks.url)) -}}
{{- fail (printf "\n\nauth.enabled is set without a key to check %s tokens with. Set auth.existingSecret (with auth.secretKeys.secret for HS algorithms, auth.secretKeys.publicKey for the others), or auth.jwks.url where public keys are fetched.\n" .algorithm) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tenancy.header (not .Values.tenancy.trustedProxy) -}}
{{- fail "\n\ntenancy.header is set without tenancy.trustedProxy. Any client could choose whose data it reads. Put a proxy before the brokers that sets x-queen-tenant, and confirm it with tenancy.trustedProxy=true.\n" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) -}}
{{- fail "\n\ngateway.enabled is set without gateway.parentRefs: the route would belong to no gateway. Set it, such as --set 'gateway.parentRefs[0].name=my-gateway'.\n" -}}
{{- end -}}
{{- end -}}

{{/* What Kubernetes would refuse in the middle of an installation, or take and never serve. */}}
{{- define "queen.guard.service" -}}
{{- $type := .Values.service.type -}}
{{- range $field, $types := dict "nodePort" (list "NodePort" "LoadBalancer") "externalTrafficPolicy" (list "NodePort" "LoadBalancer")
  "loadBalancerClass" (list "LoadBalancer") "loadBalancerSourceRanges" (list "LoadBalancer") -}}
{{- if and (get $.Values.service $field) (not (has $type $types)) -}}
{{- fail (printf "\n\nservice.%s is set with service.type=%s, which Kubernetes refuses. Set service.type=%s, or leave service.%s out.\n" $field $type (join " or " $types) $field) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "\n\ningress.enabled is set without ingress.hosts: it would lead nowhere. Set it, such as --set 'ingress.hosts[0].host=queen.example.com,ingress.hosts[0].paths[0].path=/,ingress.hosts[0].paths[0].pathType=Prefix'.\n" -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.replicas" -}}
{{- if dig "autoscaling" "enabled" false .set -}}
{{- $min := include "queen.minReplicas" . | int -}}
{{- $max := include "queen.maxReplicas" . | int -}}
{{- if gt $min $max -}}
{{- fail (printf "\n\n%s: the least number of pods is %d (%s.replicas, or %s.autoscaling.minReplicas), and %s.autoscaling.maxReplicas is %d. Raise the latter, or set %s.autoscaling.enabled=false.\n" .name $min .name .name .name $max .name) -}}
{{- end -}}
{{- $scaling := .set.autoscaling -}}
{{- if not (or $scaling.targetCPUPercent $scaling.targetMemoryPercent $scaling.targetParkedPops $scaling.targetLagMessages $scaling.metrics) -}}
{{- fail (printf "\n\n%s.autoscaling is enabled without a metric. Set %s.autoscaling.targetCPUPercent, targetMemoryPercent or metrics, or %s.autoscaling.enabled=false.\n" .name .name .name) -}}
{{- end -}}
{{- if and $scaling.targetCPUPercent (not (dig "resources" "requests" "cpu" "" .set)) -}}
{{- fail (printf "\n\n%s.autoscaling.targetCPUPercent is a part of the CPU request, and there is none. Set %s.resources.requests.cpu.\n" .name .name) -}}
{{- end -}}
{{- if and $scaling.targetMemoryPercent (not (dig "resources" "requests" "memory" "" .set)) -}}
{{- fail (printf "\n\n%s.autoscaling.targetMemoryPercent is a part of the memory request, and there is none. Set %s.resources.requests.memory.\n" .name .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.strategy" -}}
{{- $rolling := .set.strategy.rollingUpdate | default dict -}}
{{- if and (eq .set.strategy.type "RollingUpdate") (eq (include "queen.kind" .) "Deployment")
  (has (get $rolling "maxSurge" | toString) (list "0" "0%")) (has (get $rolling "maxUnavailable" | toString) (list "0" "0%")) -}}
{{- fail (printf "\n\n%s.strategy.rollingUpdate: maxSurge and maxUnavailable are both 0, so that no pod could ever be replaced. Set %s.strategy.rollingUpdate.maxSurge or maxUnavailable to 1.\n" .name .name) -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.grace" -}}
{{- $grace := include "queen.gracePeriod" . | int -}}
{{- $drain := include "queen.drain" . | int -}}
{{- if lt $grace $drain -}}
{{- $delay := dig "shutdown" "delaySeconds" 0 .set | int -}}
{{- fail (printf "\n\n%s: terminationGracePeriodSeconds is %d, and the drain may take shutdown.delaySeconds %d + shutdown.timeoutSeconds %d = %d: pods would be killed while they answer. Set %s.terminationGracePeriodSeconds to at least %d, or leave it out, or shorten the drain.\n"
  .name $grace $delay (int .set.shutdown.timeoutSeconds) $drain .name $drain) -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.startup" -}}
{{- $room := mul (dig "startup" "periodSeconds" 10 .set.probes) (dig "startup" "failureThreshold" 3 .set.probes) -}}
{{- if lt $room (int .set.databaseWaitSeconds) -}}
{{- fail (printf "\n\n%s: probes.startup gives up after periodSeconds x failureThreshold = %d s, while the process may wait for PostgreSQL for databaseWaitSeconds = %d s. Raise %s.probes.startup.failureThreshold.\n" .name $room (int .set.databaseWaitSeconds) .name) -}}
{{- end -}}
{{- end -}}

{{/* Kubernetes would take the Deployment, and refuse its pods. */}}
{{- define "queen.guard.requests" -}}
{{- $limit := include "queen.memoryLimit" . -}}
{{- $request := dig "resources" "requests" "memory" "" .set -}}
{{- if and $limit $request -}}
{{- $bytes := include "queen.bytes" (dict "quantity" $request "what" (printf "%s.resources.requests.memory" .name)) -}}
{{- if gt (int64 $bytes) (int64 $limit) -}}
{{- fail (printf "\n\n%s.resources: requests.memory is %v and limits.memory %v, and no pod may ask for more than it may have. Raise %s.resources.limits.memory or lower the request.\n" .name $request .set.resources.limits.memory .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where a variable is to be set instead that the chart sets for a service. */}}
{{- define "queen.variables.service" -}}
DB_POOL_SIZE: poolSize
QUEEN_KV_POOL_SIZE: keyValuePoolSize
QUEEN_DEDUP_CACHE_MB: memory.dedupCacheMiB
QUEEN_ACK_REGISTRY_MB: memory.ackRegistryMiB
QUEEN_SEGMENT_CACHE_MB: memory.segmentCacheMiB
QUEEN_MAX_INFLIGHT_BYTES: memory.requestBodiesMiB
QUEEN_MAX_BODY_BYTES: maxBodyMiB
QUEEN_MAX_PARKED_POPS: longPoll.maxParked
DEFAULT_TIMEOUT: longPoll.defaultSeconds
QUEEN_SHUTDOWN_DELAY_MS: shutdown.delaySeconds
QUEEN_SHUTDOWN_TIMEOUT_MS: shutdown.timeoutSeconds
QUEEN_BOOT_DB_WAIT_MS: databaseWaitSeconds
GOMEMLIMIT: goMemoryPercent
{{- end -}}

{{/* The same for variables of the whole installation: also where the chart does not set
them, they would go round what it checks. */}}
{{- define "queen.variables.chart" -}}
PG_URL: database.url or database.existingSecret
PG_HOST: database.host
PG_PORT: database.port
PG_DATABASE: database.name
PG_DB: database.name
PG_USER: database.user
PG_PASSWORD: database.existingSecret
PG_USE_SSL: database.tls.enabled
PG_SSL_REJECT_UNAUTHORIZED: database.tls.verify
QUEEN_APPLY_SCHEMA: schema.mode
QUEEN_RUNTIME_ROLE: schema.runtimeRole
QUEEN_SYNC_ENABLED: hints.enabled
QUEEN_MESH_PEERS: hints.enabled
QUEEN_MESH_PORT: hints.port
QUEEN_SYNC_SECRET: hints.existingSecret
JWT_ENABLED: auth.enabled
QUEEN_TENANCY_HEADER: tenancy.header
QUEEN_KV_TRUSTED_PROXY: tenancy.trustedProxy
QUEEN_ENCRYPTION_KEY: encryption.existingSecret
FILE_BUFFER_DIR: spool.enabled
LOG_LEVEL: logging.level
QUEEN_LOG_JSON: logging.json
{{- end -}}

{{- define "queen.guard.variables" -}}
{{- $instead := include "queen.variables.chart" . | fromYaml -}}
{{- range $name, $value := include "queen.variables.service" . | fromYaml -}}
{{- $_ := set $instead $name (printf "%s.%s" $.name $value) -}}
{{- end -}}
{{- $bare := deepCopy .set -}}
{{- $_ := set $bare "config" dict -}}
{{- $_ := set $bare "extraEnv" list -}}
{{- $taken := keys (include "queen.variables.chart" . | fromYaml) -}}
{{- range include "queen.env" (dict "root" .root "name" .name "set" $bare) | fromYamlArray -}}
{{- $taken = append $taken .name -}}
{{- end -}}
{{- $given := keys (.set.config | default dict) -}}
{{- range .set.extraEnv -}}
{{- if has .name $given -}}
{{- fail (printf "\n\n%s: config and extraEnv, or two entries of extraEnv, both set %s. Remove one of them.\n" $.name .name) -}}
{{- end -}}
{{- $given = append $given .name -}}
{{- end -}}
{{- range $given -}}
{{- if has . $taken -}}
{{- fail (printf "\n\n%s.config or extraEnv sets %s, which the chart sets itself and reckons with. Use %s.\n" $.name . (get $instead . | default "the value of its own that values.yaml describes")) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.memory" -}}
{{- $memory := include "queen.memory" . | fromJson -}}
{{- with include "queen.memoryLimit" . -}}
{{- $limit := div (int64 .) 1048576 -}}
{{- if gt (int64 $memory.total) $limit -}}
{{- fail (printf "\n\nbroker: what may fill its memory is more than its limit of %d MiB: %s. Set broker.resources.limits.memory to at least %dMi, or lower broker.memory.dedupCacheMiB or broker.memory.requestBodiesMiB.\n" $limit $memory.text (int64 $memory.total)) -}}
{{- end -}}
{{- end -}}
{{- if gt (int .set.maxBodyMiB) (int .set.memory.requestBodiesMiB) -}}
{{- fail (printf "\n\nbroker: the largest body (broker.maxBodyMiB %d) does not fit into broker.memory.requestBodiesMiB %d. Raise the latter or lower the former.\n" (int .set.maxBodyMiB) (int .set.memory.requestBodiesMiB)) -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.polls" -}}
{{- $longest := int .set.longPoll.maxSeconds -}}
{{- if lt $longest (int .set.longPoll.defaultSeconds) -}}
{{- fail (printf "\n\nbroker.longPoll.maxSeconds %d is shorter than broker.longPoll.defaultSeconds %d, which every pop may take. Raise the former or lower the latter.\n" $longest (int .set.longPoll.defaultSeconds)) -}}
{{- end -}}
{{- range $edge := list "ingress" "gateway" -}}
{{- $values := get $.root.Values $edge -}}
{{- if and $values.enabled (le (int $values.timeoutSeconds) $longest) -}}
{{- fail (printf "\n\n%s.timeoutSeconds is %d, and clients may wait for broker.longPoll.maxSeconds = %d: long polls would be cut. Set %s.timeoutSeconds to more than %d, or lower broker.longPoll.maxSeconds to the longest timeout that your clients ask for.\n"
  $edge (int $values.timeoutSeconds) $longest $edge $longest) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "queen.guard.connections" -}}
{{- $sum := include "queen.connections" . | fromJson -}}
{{- if gt (int $sum.total) (int $sum.usable) -}}
{{- fail (printf "\n\nThe services may open more connections than PostgreSQL has for them.\n\n  %s\n  %-11s %d\n  %-11s %d (database.maxConnections %d less a tenth in reserve, %d)\n\n- If the server allows more, say so: database.maxConnections=<max_connections of the server>.\n- Or lower broker.autoscaling.maxReplicas, the replicas, or the poolSize of a service (broker.poolSize, broker.keyValuePoolSize, maintainer.poolSize, sweeper.poolSize).\n"
  (join "\n  " $sum.rows) "together" (int $sum.total) "available" (int $sum.usable) (int $sum.max) (int $sum.reserve)) -}}
{{- end -}}
{{- end -}}
