{{/* The Deployment of a service, or the StatefulSet of brokers that have a spool. */}}
{{- define "queen.workload" -}}
{{- $kind := include "queen.kind" . -}}
apiVersion: apps/v1
kind: {{ $kind }}
metadata:
  {{- include "queen.metadata" (merge (dict "labels" .set.labels "annotations" .set.annotations) .) | nindent 2 }}
spec:
  {{- if not (dig "autoscaling" "enabled" false .set) }}
  replicas: {{ int .set.replicas }}
  {{- end }}
  revisionHistoryLimit: {{ int .set.revisionHistoryLimit }}
  {{- with .set.minReadySeconds }}
  minReadySeconds: {{ int . }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "queen.selector" . | nindent 6 }}
  {{- if eq $kind "StatefulSet" }}
  {{- include "queen.stateful" . | nindent 2 }}
  {{- else }}
  strategy:
    type: {{ .set.strategy.type }}
    {{- if eq .set.strategy.type "RollingUpdate" }}
    rollingUpdate:
      {{- toYaml .set.strategy.rollingUpdate | nindent 6 }}
    {{- end }}
  {{- end }}
  template:
    {{- include "queen.pod" . | nindent 4 }}
{{- end -}}

{{/* Brokers do not wait for each other: the lock of the schema puts them in turn. */}}
{{- define "queen.stateful" -}}
{{- with .root.Values.spool -}}
serviceName: {{ include "queen.hints.name" $.root }}
podManagementPolicy: Parallel
updateStrategy:
  type: RollingUpdate
persistentVolumeClaimRetentionPolicy:
  whenDeleted: {{ .volume.whenDeleted }}
  whenScaled: {{ .volume.whenScaled }}
volumeClaimTemplates:
  - metadata:
      name: spool
      labels:
        {{- include "queen.selector" $ | nindent 8 }}
      {{- with .volume.annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      accessModes:
        {{- toYaml .volume.accessModes | nindent 8 }}
      {{- with .volume.storageClassName }}
      storageClassName: {{ . | quote }}
      {{- end }}
      resources:
        requests:
          storage: {{ .volume.size }}
{{- end }}
{{- end -}}

{{- define "queen.hpa" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "queen.metadata" . | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: {{ include "queen.kind" . }}
    name: {{ include "queen.service.name" . }}
  minReplicas: {{ include "queen.minReplicas" . }}
  maxReplicas: {{ include "queen.maxReplicas" . }}
  metrics:
    {{- range $resource, $target := dict "cpu" .set.autoscaling.targetCPUPercent "memory" .set.autoscaling.targetMemoryPercent }}
    {{- with $target }}
    - type: Resource
      resource:
        name: {{ $resource }}
        target:
          type: Utilization
          averageUtilization: {{ int . }}
    {{- end }}
    {{- end }}
    {{- with get .set.autoscaling "targetParkedPops" }}
    - type: Pods
      pods:
        metric:
          name: queen_pop_parked
        target:
          type: AverageValue
          averageValue: {{ int . | quote }}
    {{- end }}
    {{- with get .set.autoscaling "targetLagMessages" }}
    - type: External
      external:
        metric:
          name: queen_consumer_group_lag_messages
        target:
          type: AverageValue
          averageValue: {{ int . | quote }}
    {{- end }}
    {{- with .set.autoscaling.metrics }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .set.autoscaling.behavior }}
  behavior:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* A budget over a single pod would only block the draining of its node. */}}
{{- define "queen.pdb" -}}
{{- if and .set.pdb.enabled (gt (include "queen.minReplicas" . | int) 1) -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "queen.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .set.pdb.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "queen.selector" . | nindent 6 }}
{{- end -}}
{{- end -}}
