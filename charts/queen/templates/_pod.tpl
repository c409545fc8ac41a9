{{/* The pod template of every service. */}}
{{- define "queen.pod" -}}
metadata:
  labels:
    {{- include "queen.podLabels" . | nindent 4 }}
  {{- $annotations := dict }}
  {{- if include "queen.database.inline" .root }}
  {{- $_ := set $annotations "checksum/database" (include "queen.database.data" .root | sha256sum) }}
  {{- end }}
  {{- with merge $annotations (.set.podAnnotations | default dict) (.root.Values.commonAnnotations | default dict) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "queen.serviceAccountName" .root | quote }}
  {{- include "queen.pod.common" . | nindent 2 }}
  terminationGracePeriodSeconds: {{ include "queen.gracePeriod" . }}
  topologySpreadConstraints:
    {{- include "queen.spread" . | nindent 4 }}
  {{- with .set.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .set.hostAliases }}
  hostAliases:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .set.dnsConfig }}
  dnsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .set.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .name }}
      {{- include "queen.container" . | nindent 6 }}
    {{- with .set.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .set.extraVolumes }}
  volumes:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* What the pods of services, of the schema job and of the test have in common. */}}
{{- define "queen.pod.common" -}}
automountServiceAccountToken: {{ .root.Values.serviceAccount.automount }}
enableServiceLinks: false
securityContext:
  {{- toYaml (include "queen.podSecurity" . | fromJson) | nindent 2 }}
{{- with .root.Values.global.imagePullSecrets | default .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .set.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .set.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .set.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A volume is mounted for the group that the process runs as. */}}
{{- define "queen.podSecurity" -}}
{{- $context := deepCopy (.set.podSecurityContext | default dict) -}}
{{- if and (eq (include "queen.kind" .) "StatefulSet") (not (hasKey $context "fsGroup")) (hasKey $context "runAsGroup") -}}
{{- $_ := set $context "fsGroup" $context.runAsGroup -}}
{{- $_ := set $context "fsGroupChangePolicy" "OnRootMismatch" -}}
{{- end -}}
{{- toJson $context -}}
{{- end -}}

{{- define "queen.container" -}}
image: {{ include "queen.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- toYaml (.set.securityContext | default dict) | nindent 2 }}
env:
  {{- include "queen.env" . | trim | nindent 2 }}
{{- with .set.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  {{- if eq .name "broker" }}
  - name: http
    containerPort: 6632
    protocol: TCP
  {{- end }}
  - name: ops
    containerPort: {{ include "queen.opsPort" . }}
    protocol: TCP
  {{- if and .root.Values.hints.enabled (ne .name "maintainer") }}
  - name: hints-tcp
    containerPort: {{ int .root.Values.hints.port }}
    protocol: TCP
  - name: hints-udp
    containerPort: {{ int .root.Values.hints.port }}
    protocol: UDP
  {{- end }}
{{- range $probe, $path := dict "startup" "/ready" "readiness" "/ready" "liveness" "/live" }}
{{ $probe }}Probe:
  httpGet:
    path: {{ $path }}
    port: ops
  {{- toYaml (get $.set.probes $probe) | nindent 2 }}
{{- end }}
resources:
  {{- toYaml (.set.resources | default dict) | nindent 2 }}
{{- with include "queen.mounts" . | fromYamlArray }}
volumeMounts:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "queen.mounts" -}}
{{- $mounts := .set.extraVolumeMounts | default list -}}
{{- if eq (include "queen.kind" .) "StatefulSet" -}}
{{- $mounts = prepend $mounts (dict "name" "spool" "mountPath" .root.Values.spool.mountPath) -}}
{{- end -}}
{{- toYaml $mounts -}}
{{- end -}}

{{/* Constraints without a selector get that of the service, by revision: the pods that an
update takes away do not count. */}}
{{- define "queen.spread" -}}
{{- $selector := dict "matchLabels" (include "queen.selector" . | fromYaml) -}}
{{- $revision := ternary "controller-revision-hash" "pod-template-hash" (eq (include "queen.kind" .) "StatefulSet") -}}
{{- $constraints := list -}}
{{- range .set.topologySpreadConstraints -}}
{{- $one := deepCopy . -}}
{{- if not (hasKey $one "labelSelector") -}}
{{- $_ := set $one "labelSelector" $selector -}}
{{- $_ := set $one "matchLabelKeys" (list $revision) -}}
{{- end -}}
{{- $constraints = append $constraints $one -}}
{{- end -}}
{{- toYaml $constraints -}}
{{- end -}}
