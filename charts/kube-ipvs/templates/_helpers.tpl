{{- define "kube-ipvs.name" -}}
{{ .Values.fullnameOverride | default .Chart.Name }}
{{- end }}

{{- define "kube-ipvs.selector" -}}
app.kubernetes.io/name: kube-ipvs
app.kubernetes.io/instance: {{ include "kube-ipvs.name" . }}
{{- end }}

{{- define "kube-ipvs.labels" -}}
{{ include "kube-ipvs.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "kube-ipvs.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "kube-ipvs.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- define "kube-ipvs.image" -}}
{{- with .Values.image -}}
{{ with .registry }}{{ . }}/{{ end }}{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* The content of the configuration file, or nothing. */}}
{{- define "kube-ipvs.config" -}}
{{- if .Values.config -}}
{{ merge (dict "apiVersion" "config.kube-ipvs.io/v1alpha1" "kind" "Configuration") .Values.config | toYaml }}
{{- else if .Values.kubeProxyConfig -}}
{{ merge (dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration") .Values.kubeProxyConfig | toYaml }}
{{- end }}
{{- end }}

{{- define "kube-ipvs.node-label" -}}
- sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: node
{{- end }}

{{- /* The settings that the agent reads only when it starts, or nothing. */}}
{{- define "kube-ipvs.restart-config" -}}
{{- range $config := list .Values.config .Values.kubeProxyConfig }}
{{- with pick $config "hostnameOverride" "clientConnection" "manifests" "serviceProxyName" "statusSocket" "healthzBindAddress" "metricsBindAddress" "metrics" "enableProfiling" "oomScoreAdj" }}
{{ toJson . }}
{{- end }}
{{- with dig "logging" "format" "" $config }}
logging.format: {{ . }}
{{- end }}
{{- end }}
{{- end }}
