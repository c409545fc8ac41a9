{{/*
How many connections all services open at their largest, as JSON.

A pod has a pool of poolSize. Beside it
- a broker has one for keys and timers (keyValuePoolSize);
- a maintainer has one connection that holds the leader's lock. Those that stand by open
  one to try it, so each is counted;
- a broker that applies the schema has one that holds the schema's lock, but only before
  it serves, while its pool is empty: it is not counted;
- requests to cancel a statement take no slot of max_connections.
The job that applies the schema has its pool and the one that holds the lock.
*/}}
{{- define "queen.connections" -}}
{{- $rows := list -}}
{{- $total := 0 -}}
{{- range $name := include "queen.services" . | fromJsonArray -}}
{{- $set := include "queen.settings" (dict "root" $ "name" $name) | fromJson -}}
{{- $ctx := dict "root" $ "name" $name "set" $set -}}
{{- $pods := include "queen.maxReplicas" $ctx | int -}}
{{- $surge := include "queen.surge" $ctx | int -}}
{{- $own := int $set.poolSize -}}
{{- $beside := 0 -}}
{{- $what := "" -}}
{{- if eq $name "broker" -}}
{{- $beside = int $set.keyValuePoolSize -}}
{{- $what = "for keys and timers" -}}
{{- else if eq $name "maintainer" -}}
{{- $beside = 1 -}}
{{- $what = "for the leader's lock" -}}
{{- end -}}
{{- $sum := mul (add $pods $surge) (add $own $beside) -}}
{{- $total = add $total $sum -}}
{{- $each := printf "%d" $own -}}
{{- if $what }}{{ $each = printf "(%d + %d %s)" $own $beside $what }}{{ end -}}
{{- $rows = append $rows (printf "%-11s (%d pods + %d during an update) x %s = %d" $name $pods $surge $each $sum) -}}
{{- end -}}
{{- if eq .Values.schema.mode "job" -}}
{{- $pool := include "queen.schema.poolSize" . | int -}}
{{- $total = add $total $pool 1 -}}
{{- $rows = append $rows (printf "%-11s 1 job x (%d + 1 for the schema's lock) = %d" "schema" $pool (add $pool 1)) -}}
{{- end -}}
{{- $max := int .Values.database.maxConnections -}}
{{- $reserve := div (add $max 9) 10 -}}
{{- toJson (dict "rows" $rows "total" $total "max" $max "reserve" $reserve "usable" (sub $max $reserve)) -}}
{{- end -}}

{{/* The memory that a broker may fill, in MiB, as JSON. */}}
{{- define "queen.memory" -}}
{{- $memory := .set.memory -}}
{{- $bodies := int $memory.requestBodiesMiB -}}
{{- $parked := div (add (mul (int .set.longPoll.maxParked) 8) 1023) 1024 -}}
{{- $eighth := div (add $bodies 7) 8 -}}
{{- $total := add (int $memory.dedupCacheMiB) (int $memory.ackRegistryMiB) (int $memory.segmentCacheMiB) (mul 2 $bodies) $eighth $parked (int $memory.baseMiB) -}}
{{- $text := printf "dedupCacheMiB %d + ackRegistryMiB %d + segmentCacheMiB %d + requestBodiesMiB 2 x %d + an eighth of it %d + parked pops %d (longPoll.maxParked x 8 KiB) + baseMiB %d = %d MiB"
  (int $memory.dedupCacheMiB) (int $memory.ackRegistryMiB) (int $memory.segmentCacheMiB) $bodies $eighth $parked (int $memory.baseMiB) $total -}}
{{- toJson (dict "total" $total "text" $text) -}}
{{- end -}}
