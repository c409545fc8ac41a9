{{/* Controllers cut requests after a minute unless they are told otherwise, and some refuse
large bodies. Each has annotations of its own for that. */}}
{{- define "queen.ingress.annotations" -}}
{{- $seconds := int .Values.ingress.timeoutSeconds -}}
{{- $body := int .Values.broker.maxBodyMiB -}}
{{- if eq .Values.ingress.controller "nginx" -}}
nginx.ingress.kubernetes.io/proxy-read-timeout: {{ $seconds | quote }}
nginx.ingress.kubernetes.io/proxy-send-timeout: {{ $seconds | quote }}
nginx.ingress.kubernetes.io/proxy-body-size: "{{ $body }}m"
nginx.ingress.kubernetes.io/proxy-buffering: "off"
{{- else if eq .Values.ingress.controller "haproxy" -}}
haproxy.org/timeout-server: "{{ $seconds }}s"
{{- else if eq .Values.ingress.controller "haproxy-ingress" -}}
haproxy-ingress.github.io/timeout-server: "{{ $seconds }}s"
haproxy-ingress.github.io/proxy-body-size: "{{ $body }}m"
{{- else if eq .Values.ingress.controller "alb" -}}
alb.ingress.kubernetes.io/load-balancer-attributes: idle_timeout.timeout_seconds={{ $seconds }}
{{- end -}}
{{- end -}}
