{{/* Name of every object of the release: `pdpool-operator` for a release called pdpool. */}}
{{- define "pdpool.name" -}}
{{- printf "%s-operator" (.Release.Name | trunc 50 | trimSuffix "-") -}}
{{- end -}}

{{/* What selects the operator's pods. The name is also what the pools' network policies let in. */}}
{{- define "pdpool.selector" -}}
app.kubernetes.io/name: pdpool-operator
app.kubernetes.io/instance: {{ .Release.Name | trunc 63 | trimSuffix "-" | quote }}
{{- end -}}

{{- define "pdpool.labels" -}}
{{ include "pdpool.selector" . }}
app.kubernetes.io/part-of: pdpool
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{/* repository@digest, or repository:tag with the chart's appVersion as the default; of `image` in `chart`. */}}
{{- define "pdpool.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Rules of one set (`pools`, `own`, `secrets`) of files/rules.yaml, which is generated from the operator's own list. */}}
{{- define "pdpool.rules" -}}
{{- get (.root.Files.Get "files/rules.yaml" | fromYaml) .set | toYaml -}}
{{- end -}}

{{/* Namespaces in which Secrets may be read, as a JSON list. */}}
{{- define "pdpool.secretNamespaces" -}}
{{- $own := ternary (list .Release.Namespace) list .Values.namespaced -}}
{{- concat $own .Values.secretNamespaces | uniq | toJson -}}
{{- end -}}
