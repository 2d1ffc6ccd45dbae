{{- define "pacegate.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pacegate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pacegate.labels" -}}
{{ include "pacegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "pacegate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "pacegate.scheme" -}}
{{ ternary "HTTPS" "HTTP" (ne .Values.tls.secret "") }}
{{- end -}}

{{/* Stops with a message if the values contradict each other. */}}
{{- define "pacegate.validate" -}}
{{- $values := .Values -}}
{{- $pods := ternary $values.autoscaling.maxReplicas $values.replicas $values.autoscaling.enabled | int -}}
{{- if and (eq $values.store.type "memory") (gt $pods 1) -}}
{{- fail "several pods need a shared store: set store.type=redis, or replicas=1 without autoscaling" -}}
{{- end -}}
{{- if and (eq $values.store.type "redis") (not $values.store.urlSecret.name) -}}
{{- fail "store.type=redis needs store.urlSecret.name, a secret with the URL of Redis or Valkey" -}}
{{- end -}}
{{- if and $values.apiKeys.keys (not $values.apiKeys.secret) -}}
{{- fail "apiKeys.keys needs apiKeys.secret, a secret with one entry per API key" -}}
{{- end -}}
{{- if not $values.insecure -}}
{{- if or (not $values.tls.secret) (not $values.apiKeys.keys) -}}
{{- fail "the pods listen on all addresses, which needs tls.secret and apiKeys.keys; set insecure=true only if a network policy keeps others out" -}}
{{- end -}}
{{- end -}}
{{- range $name := list "store" "policies" "listen" "tls" "keys" -}}
{{- if hasKey $values.config $name -}}
{{- fail (printf "config.%s is written by the chart: use the value of that name instead" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The configuration file, as docs/configuration.md describes it. */}}
{{- define "pacegate.config" -}}
{{- $values := .Values -}}
{{- $config := deepCopy $values.config -}}
{{- if eq $values.store.type "redis" -}}
{{- $url := dict "url_file" (printf "/run/secrets/pacegate-store/%s" $values.store.urlSecret.key) -}}
{{- $_ := set $config "store" (merge $url $values.store.settings) -}}
{{- else if $values.store.settings -}}
{{- $_ := set $config "store" $values.store.settings -}}
{{- end -}}
{{- $_ := set $config "policies" $values.policies -}}
{{- $listen := dict "http" "0.0.0.0:8080" -}}
{{- $_ := set $listen "grpc" (ternary "0.0.0.0:8081" "off" $values.listeners.grpc) -}}
{{- $_ := set $listen "resp" (ternary "0.0.0.0:6380" "off" $values.listeners.resp) -}}
{{- $_ := set $config "listen" $listen -}}
{{- if $values.tls.secret -}}
{{- $_ := set $config "tls" (dict "certificate" "/run/secrets/pacegate-tls/tls.crt" "key" "/run/secrets/pacegate-tls/tls.key") -}}
{{- end -}}
{{- $keys := list -}}
{{- range $values.apiKeys.keys -}}
{{- $key := dict "name" .name "file" (printf "/run/secrets/pacegate-keys/%s" .key) -}}
{{- $keys = append $keys (merge $key (omit . "name" "key")) -}}
{{- end -}}
{{- if $keys -}}
{{- $_ := set $config "keys" $keys -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}
