{{/* Who reaches the pods of one service, and what they reach. What is not named is closed. */}}
{{- define "queen.networkPolicy" -}}
{{- $annotations := dict -}}
{{- if eq .name "schema" -}}
{{- /* It has to be there before the job, where nothing else of the release is. */ -}}
{{- $annotations = include "queen.schema.annotations" (dict "weight" -10) | fromYaml -}}
{{- end -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "queen.metadata" (merge (dict "annotations" $annotations) .) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "queen.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  {{- with include "queen.network.ingress" . }}
  ingress:
    {{- . | nindent 4 }}
  {{- end }}
  egress:
    {{- include "queen.network.egress" . | nindent 4 }}
{{- end -}}

{{/* One rule: peers, or everybody without any, and ports. */}}
{{- define "queen.network.rule" -}}
- {{ with .peers }}{{ $.way }}:
    {{- toYaml . | nindent 4 }}
  {{ end }}ports:
    {{- range .tcp }}
    - port: {{ int . }}
      protocol: TCP
    {{- end }}
    {{- range .udp }}
    - port: {{ int . }}
      protocol: UDP
    {{- end }}
{{- end -}}

{{/* Pods of the release: all that exchange hints, or those of one service. */}}
{{- define "queen.network.hinting" -}}
- podSelector:
    matchLabels:
      {{- include "queen.selector" (dict "root" .root) | nindent 6 }}
      queen-hints: "true"
{{- end -}}

{{- define "queen.network.pods" -}}
- podSelector:
    matchLabels:
      {{- include "queen.selector" . | nindent 6 }}
{{- end -}}

{{- define "queen.network.ingress" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- if has .name (list "broker" "maintainer" "sweeper") -}}
{{ include "queen.network.rule" (dict "way" "from" "peers" $policy.scrapers "tcp" (list (include "queen.opsPort" .))) }}
{{- if eq .name "broker" }}
{{- $clients := $policy.clients }}
{{- if $clients }}
{{- $check := include "queen.network.pods" (dict "root" .root "name" "check") | fromYamlArray }}
{{- $clients = concat $clients $check }}
{{- end }}
{{ include "queen.network.rule" (dict "way" "from" "peers" $clients "tcp" (list 6632)) }}
{{- end }}
{{- if and .root.Values.hints.enabled (ne .name "maintainer") }}
{{- $peers := include "queen.network.hinting" . | fromYamlArray }}
{{- $port := list .root.Values.hints.port }}
{{ include "queen.network.rule" (dict "way" "from" "peers" $peers "tcp" $port "udp" $port) }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "queen.network.egress" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{ include "queen.network.rule" (dict "way" "to" "peers" $policy.dns.to "tcp" $policy.dns.ports "udp" $policy.dns.ports) }}
{{- if eq .name "check" }}
{{- $brokers := include "queen.network.pods" (dict "root" .root "name" "broker") | fromYamlArray }}
{{ include "queen.network.rule" (dict "way" "to" "peers" $brokers "tcp" (list 6632)) }}
{{- else }}
{{- $port := $policy.database.port | default .root.Values.database.port | default 5432 }}
{{ include "queen.network.rule" (dict "way" "to" "peers" $policy.database.to "tcp" (list $port)) }}
{{- if ne .name "schema" }}
{{- include "queen.network.services" . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What only the services reach. */}}
{{- define "queen.network.services" -}}
{{- $values := .root.Values -}}
{{- if and $values.hints.enabled (ne .name "maintainer") }}
{{- $peers := include "queen.network.hinting" . | fromYamlArray }}
{{- $port := list $values.hints.port }}
{{ include "queen.network.rule" (dict "way" "to" "peers" $peers "tcp" $port "udp" $port) }}
{{- end }}
{{- with $values.telemetry.endpoint }}
{{- $given := regexFind "^https?://[^/]*:[0-9]+" . | splitList ":" | last }}
{{- $port := $values.networkPolicy.otlp.port | default $given | default (ternary 443 80 (hasPrefix "https:" .)) }}
{{ include "queen.network.rule" (dict "way" "to" "peers" $values.networkPolicy.otlp.to "tcp" (list $port)) }}
{{- end }}
{{- with $values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}
