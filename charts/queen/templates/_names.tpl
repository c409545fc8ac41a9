{{/*
Names and labels. Every named template takes a dict: root is the top-level context, name
the service (broker, maintainer or sweeper), set its settings (queen.settings).
*/}}

{{- define "queen.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The longest suffix makes 63 of it, the most that a label or a host name may have. */}}
{{- define "queen.fullname" -}}
{{- $name := include "queen.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "queen.service.name" -}}
{{- printf "%s-%s" (include "queen.fullname" .root) .name -}}
{{- end -}}

{{/* The labels that selectors match. They are frozen: a selector cannot be changed. A name may
consist of digits, and is a text all the same: names that somebody chooses are quoted. */}}
{{- define "queen.selector" -}}
app.kubernetes.io/name: {{ include "queen.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .name }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* The labels of pods: those of selectors win over what values say, and that wins over
what only informs. None of them changes when pods do not have to. */}}
{{- define "queen.podLabels" -}}
{{- $frozen := include "queen.selector" . | fromYaml -}}
{{- if has .name (list "broker" "sweeper") -}}
{{- $_ := set $frozen "queen-hints" "true" -}}
{{- end -}}
{{- $more := dig "podLabels" dict (.set | default dict) -}}
{{- toYaml (merge $frozen $more (.root.Values.commonLabels | default dict) (include "queen.about" . | fromYaml)) -}}
{{- end -}}

{{- define "queen.about" -}}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/part-of: queen
{{- end -}}

{{/* The labels of everything else. */}}
{{- define "queen.labels" -}}
{{- $frozen := include "queen.selector" . | fromYaml -}}
{{- $chart := dict "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- toYaml (merge $frozen (.labels | default dict) (.root.Values.commonLabels | default dict) $chart (include "queen.about" . | fromYaml)) -}}
{{- end -}}

{{/* metadata of everything: its name (as, or that of the service), labels, and annotations
if there are any. */}}
{{- define "queen.metadata" -}}
name: {{ .as | default (include "queen.service.name" .) | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "queen.labels" . | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "queen.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "queen.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* A digest says exactly what runs, so it wins over a tag. */}}
{{- define "queen.image" -}}
{{- $image := .set.image -}}
{{- $common := .root.Values.image -}}
{{- $registry := .root.Values.global.imageRegistry | default $common.registry -}}
{{- $tag := $image.tag | default $common.tag | default .root.Chart.AppVersion -}}
{{- if $registry }}{{ trimSuffix "/" $registry }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- end -}}
