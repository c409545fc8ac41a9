{{/* The port of the operations listener of each service, where probes and scrapes go. */}}
{{- define "queen.opsPort" -}}
{{- get (dict "broker" 6640 "maintainer" 6641 "sweeper" 6642) .name -}}
{{- end -}}

{{- define "queen.env.secret" -}}
valueFrom:
  secretKeyRef:
    name: {{ .secret | quote }}
    key: {{ .key | quote }}
{{- end -}}

{{- define "queen.env.field" -}}
valueFrom:
  fieldRef:
    fieldPath: {{ . }}
{{- end -}}

{{/* Whether the database is given as parts, and not as one URL. */}}
{{- define "queen.database.parts" -}}
{{- if or .Values.database.host (and .Values.database.existingSecret (not .Values.database.secretKeys.uri)) -}}true{{- end -}}
{{- end -}}

{{- define "queen.database.secret" -}}
{{- .Values.database.existingSecret | default (printf "%s-database" (include "queen.fullname" .)) -}}
{{- end -}}

{{/* How a process reaches the database: the services, or with owner the schema job. What is
given as a value wins over the secret, but for the password, which is never in a manifest,
and for the user of an owner with a secret of its own. A host without a port has 5432. */}}
{{- define "queen.env.database" -}}
{{- $db := .root.Values.database -}}
{{- $own := ternary .root.Values.schema.job.database.existingSecret "" (.owner | default false) -}}
{{- $secret := $own | default (include "queen.database.secret" .root) -}}
{{- $keys := merge (dict) (ternary .root.Values.schema.job.database.secretKeys dict (not (empty $own))) $db.secretKeys -}}
{{- if include "queen.database.parts" .root }}
{{- range $part := list
  (dict "env" "PG_HOST" "value" $db.host "key" $keys.host)
  (dict "env" "PG_PORT" "value" ($db.port | default (ternary 5432 "" (not (empty $db.host)))) "key" $keys.port "default" 5432)
  (dict "env" "PG_DATABASE" "value" $db.name "key" $keys.name "default" "postgres")
  (dict "env" "PG_USER" "value" (ternary $db.user "" (empty $own)) "key" $keys.user "default" "postgres") }}
- name: {{ $part.env }}
{{- if $part.value }}
  value: {{ include "queen.text" $part.value | quote }}
{{- else if and $db.existingSecret $part.key }}
  {{- include "queen.env.secret" (dict "secret" $secret "key" $part.key) | nindent 2 }}
{{- else }}
  value: {{ include "queen.text" $part.default | quote }}
{{- end }}
{{- end }}
- name: PG_PASSWORD
  {{- include "queen.env.secret" (dict "secret" $secret "key" ($keys.password | default "password")) | nindent 2 }}
{{- if $db.tls.enabled }}
- name: PG_USE_SSL
  value: "true"
- name: PG_SSL_REJECT_UNAUTHORIZED
  value: {{ $db.tls.verify | quote }}
{{- end }}
{{- else }}
- name: PG_URL
  {{- include "queen.env.secret" (dict "secret" $secret "key" ($keys.uri | default "uri")) | nindent 2 }}
{{- end }}
{{- if $db.tls.caSecret.name }}
- name: PG_SSL_ROOT_CERT
  {{- include "queen.env.secret" (dict "secret" $db.tls.caSecret.name "key" $db.tls.caSecret.key) | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "queen.env.logging" -}}
- name: LOG_LEVEL
  value: {{ .Values.logging.level | quote }}
- name: QUEEN_LOG_JSON
  value: {{ .Values.logging.json | quote }}
{{- end -}}

{{/* What the Go runtime may use, so that it collects garbage before the kernel kills. It
takes the number of processors from the CPU limit by itself. */}}
{{- define "queen.env.runtime" -}}
{{- with include "queen.memoryLimit" . }}
- name: GOMEMLIMIT
  value: {{ div (mul (int64 .) (int $.set.goMemoryPercent)) 100 | quote }}
{{- end }}
{{- end -}}

{{/* Where traces go: standard variables of OpenTelemetry, and who the pod is. */}}
{{- define "queen.env.telemetry" -}}
{{- with .root.Values.telemetry }}
{{- if .endpoint }}
- name: POD_NAMESPACE
  {{- include "queen.env.field" "metadata.namespace" | nindent 2 }}
- name: POD_UID
  {{- include "queen.env.field" "metadata.uid" | nindent 2 }}
- name: NODE_NAME
  {{- include "queen.env.field" "spec.nodeName" | nindent 2 }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(QUEEN_SERVER_ID),k8s.pod.uid=$(POD_UID),k8s.node.name=$(NODE_NAME),k8s.container.name={{ $.name }}
    {{- range $key, $value := .resourceAttributes }},{{ $key }}={{ include "queen.text" $value }}{{ end }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTEL_EXPORTER_OTLP_PROTOCOL
  value: {{ .protocol }}
- name: OTEL_TRACES_EXPORTER
  value: {{ ternary "otlp" "none" .traces }}
- name: OTEL_METRICS_EXPORTER
  value: {{ ternary "otlp" "none" .metrics }}
- name: OTEL_TRACES_SAMPLER
  value: {{ .sampler }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ include "queen.text" .samplerRatio | quote }}
{{- with .headersSecret }}
{{- if .name }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  {{- include "queen.env.secret" (dict "secret" .name "key" .key) | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "queen.hints.name" -}}
{{- printf "%s-hints" (include "queen.fullname" .) -}}
{{- end -}}

{{/* Brokers and sweepers find each other by the headless Service, which names all of them. */}}
{{- define "queen.env.hints" -}}
{{- $hints := .root.Values.hints -}}
{{- if and $hints.enabled (ne .name "maintainer") }}
- name: QUEEN_MESH_PEERS
  value: {{ include "queen.hints.name" .root }}
- name: QUEEN_MESH_PORT
  value: {{ int $hints.port | quote }}
- name: QUEEN_MESH_ADVERTISE_HOST
  {{- include "queen.env.field" "status.podIP" | nindent 2 }}
- name: QUEEN_SYNC_SECRET
  {{- include "queen.env.secret" (dict "secret" ($hints.existingSecret | default (include "queen.hints.name" .root)) "key" $hints.secretKey) | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Whether brokers bring the database to their schema. */}}
{{- define "queen.env.schema" -}}
{{- $schema := .Values.schema -}}
- name: QUEEN_APPLY_SCHEMA
  value: {{ eq $schema.mode "boot" | quote }}
{{- if and (eq $schema.mode "boot") $schema.runtimeRole }}
- name: QUEEN_RUNTIME_ROLE
  value: {{ include "queen.text" $schema.runtimeRole | quote }}
{{- end }}
{{- end -}}

{{- define "queen.env.broker" -}}
{{- $memory := .set.memory -}}
- name: PORT
  value: "6632"
{{ include "queen.env.schema" .root }}
- name: QUEEN_SHUTDOWN_DELAY_MS
  value: {{ mul .set.shutdown.delaySeconds 1000 | quote }}
- name: QUEEN_KV_POOL_SIZE
  value: {{ int .set.keyValuePoolSize | quote }}
- name: DEFAULT_TIMEOUT
  value: {{ mul .set.longPoll.defaultSeconds 1000 | quote }}
- name: QUEEN_MAX_PARKED_POPS
  value: {{ int .set.longPoll.maxParked | quote }}
- name: QUEEN_DEDUP_CACHE_MB
  value: {{ int $memory.dedupCacheMiB | quote }}
- name: QUEEN_ACK_REGISTRY_MB
  value: {{ int $memory.ackRegistryMiB | quote }}
- name: QUEEN_SEGMENT_CACHE_MB
  value: {{ int $memory.segmentCacheMiB | quote }}
- name: QUEEN_MAX_INFLIGHT_BYTES
  value: {{ mul (int64 $memory.requestBodiesMiB) 1048576 | quote }}
- name: QUEEN_MAX_BODY_BYTES
  value: {{ mul (int64 .set.maxBodyMiB) 1048576 | quote }}
{{- if .root.Values.spool.enabled }}
- name: FILE_BUFFER_DIR
  value: {{ .root.Values.spool.mountPath }}
{{- end }}
{{- include "queen.env.guards" .root }}
{{- end -}}

{{/* What guards a broker: tokens, tenants and encryption. */}}
{{- define "queen.env.guards" -}}
{{- with .Values.auth }}
{{- if .enabled }}
- name: JWT_ENABLED
  value: "true"
- name: JWT_ALGORITHM
  value: {{ .algorithm }}
{{- $shared := hasPrefix "HS" .algorithm }}
{{- if and .existingSecret .secretKeys.secret (or $shared (eq .algorithm "auto")) }}
- name: JWT_SECRET
  {{- include "queen.env.secret" (dict "secret" .existingSecret "key" .secretKeys.secret) | nindent 2 }}
{{- end }}
{{- if and .existingSecret .secretKeys.publicKey (not $shared) }}
- name: JWT_PUBLIC_KEY
  {{- include "queen.env.secret" (dict "secret" .existingSecret "key" .secretKeys.publicKey) | nindent 2 }}
{{- end }}
{{- if .jwks.url }}
- name: JWT_JWKS_URL
  value: {{ .jwks.url | quote }}
- name: JWT_JWKS_REFRESH_INTERVAL
  value: {{ int .jwks.refreshSeconds | quote }}
- name: JWT_JWKS_TIMEOUT_MS
  value: {{ int .jwks.timeoutMilliseconds | quote }}
{{- end }}
{{- range $name, $value := dict "JWT_ISSUER" .issuer "JWT_AUDIENCE" .audience "JWT_ROLES_CLAIM" .claims.role
  "JWT_ROLES_ARRAY_CLAIM" .claims.roles "JWT_ROLE_ADMIN" .roles.admin "JWT_ROLE_READ_WRITE" .roles.readWrite
  "JWT_ROLE_READ_ONLY" .roles.readOnly "JWT_ROLE_WRITE_ONLY" .roles.writeOnly }}
{{- if $value }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
- name: JWT_CLOCK_SKEW
  value: {{ int .clockSkewSeconds | quote }}
- name: JWT_SKIP_PATHS
  value: {{ join "," .skipPaths | quote }}
{{- end }}
{{- end }}
{{- if .Values.tenancy.header }}
- name: QUEEN_TENANCY_HEADER
  value: "true"
- name: QUEEN_KV_TRUSTED_PROXY
  value: {{ .Values.tenancy.trustedProxy | quote }}
{{- end }}
{{- with .Values.encryption }}
{{- if .existingSecret }}
- name: QUEEN_ENCRYPTION_KEY
  {{- include "queen.env.secret" (dict "secret" .existingSecret "key" .secretKey) | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The environment of a service. The manifest has the values themselves, and no
ConfigMap: an old pod that restarts in the middle of an update keeps its old settings, and
a rollback brings all of them back. */}}
{{- define "queen.env" -}}
- name: QUEEN_SERVER_ID
  {{- include "queen.env.field" "metadata.name" | nindent 2 }}
{{- include "queen.env.database" (dict "root" .root) }}
- name: DB_POOL_SIZE
  value: {{ int .set.poolSize | quote }}
- name: QUEEN_BOOT_DB_WAIT_MS
  value: {{ mul .set.databaseWaitSeconds 1000 | quote }}
- name: QUEEN_SHUTDOWN_TIMEOUT_MS
  value: {{ mul .set.shutdown.timeoutSeconds 1000 | quote }}
- name: QUEEN_OPS_ADDR
  value: ":{{ include "queen.opsPort" . }}"
{{ include "queen.env.logging" .root }}
{{- include "queen.env.runtime" . }}
{{- if eq .name "broker" }}
{{ include "queen.env.broker" . }}
{{- end }}
{{- include "queen.env.hints" . }}
{{- include "queen.env.telemetry" . }}
{{- range $name, $value := .set.config }}
- name: {{ $name }}
  value: {{ include "queen.text" $value | quote }}
{{- end }}
{{- with .set.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Whether the chart makes the secret of the database, out of values. */}}
{{- define "queen.database.inline" -}}
{{- if and (not .Values.database.existingSecret) (or .Values.database.url .Values.database.host) -}}true{{- end -}}
{{- end -}}

{{/* What is secret about it. */}}
{{- define "queen.database.data" -}}
{{- with .Values.database -}}
{{- if .host -}}
{{ .secretKeys.password | default "password" | quote }}: {{ .password | quote }}
{{- else -}}
{{ .secretKeys.uri | default "uri" | quote }}: {{ .url | quote }}
{{- end -}}
{{- end -}}
{{- end -}}
