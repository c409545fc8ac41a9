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

{{/* The labels that selectors match. They are frozen: a selector cannot be changed. */}}
{{- define "queen.selector" -}}
app.kubernetes.io/name: {{ include "queen.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .name }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* The labels of pods: nothing that changes when the pods do not have to. */}}
{{- define "queen.podLabels" -}}
{{ include "queen.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: queen
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "queen.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "queen.podLabels" . }}
{{- end -}}

{{/* metadata of everything: its name, labels, and annotations if there are any. */}}
{{- define "queen.metadata" -}}
name: {{ .as | default (include "queen.service.name" .) }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "queen.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
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
