{{/*
The settings of a service, as JSON: those of global, under those of defaults, under its
own. Maps are combined key by key; anything else is taken whole from whoever has it. A
name of "" leaves out what services have of their own.
*/}}
{{- define "queen.settings" -}}
{{- $set := dict -}}
{{- range list .root.Values.global .root.Values.defaults (get .root.Values .name | default dict) -}}
{{- include "queen.overlay" (dict "base" $set "over" .) -}}
{{- end -}}
{{- toJson $set -}}
{{- end -}}

{{/* Puts over onto base, in place. Unlike the merging functions of Helm, it also lets
false, 0 and empty lists win; null leaves what is there. */}}
{{- define "queen.overlay" -}}
{{- $base := .base -}}
{{- range $key, $value := .over -}}
{{- if kindIs "invalid" $value -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $base $key)) -}}
{{- include "queen.overlay" (dict "base" (get $base $key) "over" $value) -}}
{{- else -}}
{{- $_ := set $base $key (deepCopy $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A value as the text of an environment variable. Numbers of values are floats, which
would be printed as 2.68e+08. */}}
{{- define "queen.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else if kindIs "slice" . -}}
{{- join "," . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* The bytes of a Kubernetes quantity, such as 2Gi, 1.5G, 2e9 or 1000. */}}
{{- define "queen.bytes" -}}
{{- $text := include "queen.text" .quantity -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]*)?([eE][+]?[0-9]+|m|k|Ki|[MGTPE]i?)?$" $text) -}}
{{- fail (printf "%s is %q, which is no quantity such as 512Mi, 2Gi or 1.5G" .what $text) -}}
{{- end -}}
{{- $unit := regexFind "(m|k|Ki|[MGTPE]i?)$" $text -}}
{{- $power := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
  "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- mulf (trimSuffix $unit $text | float64) (get $power $unit | float64) | floor | int64 -}}
{{- end -}}

{{/* The memory limit in bytes; nothing without one. */}}
{{- define "queen.memoryLimit" -}}
{{- $limit := dig "resources" "limits" "memory" "" .set -}}
{{- if $limit -}}
{{- include "queen.bytes" (dict "quantity" $limit "what" (printf "%s.resources.limits.memory" .name)) -}}
{{- end -}}
{{- end -}}

{{/* The grace period: the drain and a margin, unless it is set. */}}
{{- define "queen.gracePeriod" -}}
{{- if kindIs "invalid" .set.terminationGracePeriodSeconds -}}
{{- add (include "queen.drain" . | int) (.set.shutdown.marginSeconds | int) -}}
{{- else -}}
{{- int .set.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{/* How long a stop may take: the broker goes on serving for the delay, and then has the timeout. */}}
{{- define "queen.drain" -}}
{{- add (dig "shutdown" "delaySeconds" 0 .set | int) (.set.shutdown.timeoutSeconds | int) -}}
{{- end -}}

{{/* The least number of pods, and the most beside surge pods. */}}
{{- define "queen.minReplicas" -}}
{{- if dig "autoscaling" "enabled" false .set -}}
{{- .set.autoscaling.minReplicas | default .set.replicas | int -}}
{{- else -}}
{{- int .set.replicas -}}
{{- end -}}
{{- end -}}

{{- define "queen.maxReplicas" -}}
{{- if dig "autoscaling" "enabled" false .set -}}
{{- int .set.autoscaling.maxReplicas -}}
{{- else -}}
{{- int .set.replicas -}}
{{- end -}}
{{- end -}}

{{/* The pods that a rolling update starts beside the others. Those of a StatefulSet stop first. */}}
{{- define "queen.surge" -}}
{{- $surge := dig "strategy" "rollingUpdate" "maxSurge" "25%" .set -}}
{{- if or (eq .set.strategy.type "Recreate") (eq (include "queen.kind" .) "StatefulSet") -}}
0
{{- else if hasSuffix "%" (include "queen.text" $surge) -}}
{{- $parts := mul (trimSuffix "%" $surge | int) (include "queen.maxReplicas" . | int) -}}
{{- div (add $parts 99) 100 -}}
{{- else -}}
{{- int $surge -}}
{{- end -}}
{{- end -}}

{{/* A volume for each pod needs a StatefulSet. */}}
{{- define "queen.kind" -}}
{{- if and (eq .name "broker") .root.Values.spool.enabled }}StatefulSet{{ else }}Deployment{{ end -}}
{{- end -}}

{{/* The services that run, as JSON. */}}
{{- define "queen.services" -}}
{{- $names := list "broker" -}}
{{- if .Values.maintainer.enabled }}{{ $names = append $names "maintainer" }}{{ end -}}
{{- if .Values.sweeper.enabled }}{{ $names = append $names "sweeper" }}{{ end -}}
{{- toJson $names -}}
{{- end -}}
