{{/* The context of a pod that is no service, but runs the broker's binary: its settings
are those of all pods. */}}
{{- define "queen.hook" -}}
{{- $set := include "queen.settings" (dict "root" .root "name" "") | fromJson -}}
{{- $_ := set $set "image" .root.Values.broker.image -}}
{{- toJson $set -}}
{{- end -}}

{{/* Annotations of what exists only while the schema job runs. Weights order them. */}}
{{- define "queen.schema.annotations" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "queen.schema.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- printf "%s-schema" (include "queen.fullname" .) -}}
{{- else -}}
{{- include "queen.serviceAccountName" . -}}
{{- end -}}
{{- end -}}

{{/* A migration needs one connection to look, and one to hold the lock and apply. */}}
{{- define "queen.schema.poolSize" -}}2{{- end -}}

{{- define "queen.schema.env" -}}
{{- include "queen.env.database" (dict "root" .root "owner" true) }}
- name: DB_POOL_SIZE
  value: {{ include "queen.schema.poolSize" . | quote }}
- name: QUEEN_BOOT_DB_WAIT_MS
  value: {{ mul .set.databaseWaitSeconds 1000 | quote }}
{{ include "queen.env.logging" .root }}
{{- include "queen.env.runtime" . }}
{{- with .root.Values.schema.runtimeRole }}
- name: QUEEN_RUNTIME_ROLE
  value: {{ include "queen.text" . | quote }}
{{- end }}
{{- end -}}
