{{/* What somebody should know before it hurts, as a JSON list. */}}
{{- define "queen.warnings" -}}
{{- $list := list -}}
{{- with .Values.database -}}
{{- $url := .url | default "" -}}
{{- if or .url .password -}}
{{- $list = append $list "The password of the database is among the values, and so in the record of the release.\nPut it into a secret and name that: database.existingSecret." -}}
{{- end -}}
{{- if or (regexMatch "(pooler|pgbouncer|pgcat)" (print $url .host)) (regexMatch ":6432([/?]|$)" $url) (eq (int .port) 6432) -}}
{{- $list = append $list "The database seems to be behind a pooler. It has to pool sessions: transaction pooling\nbreaks the locks of the schema and of retention, and prepared statements." -}}
{{- end -}}
{{- if or (and .host (not .tls.enabled)) (and .url (not (regexMatch "sslmode=(require|verify-ca|verify-full)" $url))) -}}
{{- $list = append $list "Connections to PostgreSQL are not bound to be encrypted. Set database.tls.enabled, or\nsslmode=verify-full in the URL." -}}
{{- end -}}
{{- if and .host .tls.enabled (not .tls.verify) (not .tls.caSecret.name) -}}
{{- $list = append $list "Any certificate of PostgreSQL is accepted. Name its authority: database.tls.caSecret." -}}
{{- end -}}
{{- end -}}
{{- if and .Values.schema.job.database.existingSecret (not .Values.schema.runtimeRole) -}}
{{- $list = append $list "The schema job has credentials of its own, and no role is named that gets rights from it\n(schema.runtimeRole): the services may be refused by the database." -}}
{{- end -}}
{{- if not .Values.maintainer.enabled -}}
{{- $list = append $list "There is no maintainer (maintainer.enabled): nothing is ever deleted." -}}
{{- end -}}
{{- if not .Values.sweeper.enabled -}}
{{- $list = append $list "There is no sweeper (sweeper.enabled): timers wait, and expired keys stay." -}}
{{- end -}}
{{- range $value, $on := dict "auth.enabled" .Values.auth.enabled "tenancy.header" .Values.tenancy.header -}}
{{- if $on -}}
{{- $list = append $list (printf "%s needs a broker that supports it. Version 0.1.0 refuses to start." $value) -}}
{{- end -}}
{{- end -}}
{{- if .Values.encryption.existingSecret -}}
{{- $list = append $list "encryption.existingSecret needs a broker that supports it. Version 0.1.0 stores plain text." -}}
{{- end -}}
{{- if .Values.spool.enabled -}}
{{- $list = append $list "spool.enabled needs a broker that supports it. Version 0.1.0 does not use the volume." -}}
{{- if .Values.broker.autoscaling.enabled -}}
{{- $list = append $list "Brokers with a spool are scaled (broker.autoscaling.enabled): what the volume of a broker\nholds that was scaled away is delivered once it is back." -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.tls) -}}
{{- $list = append $list "The Ingress has no TLS (ingress.tls)." -}}
{{- end -}}
{{- toJson $list -}}
{{- end -}}
