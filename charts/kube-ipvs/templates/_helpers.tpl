{{- define "kube-ipvs.name" -}}
{{ .Values.fullnameOverride | default .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{- define "kube-ipvs.selector" -}}
app.kubernetes.io/name: kube-ipvs
app.kubernetes.io/instance: {{ include "kube-ipvs.name" . }}
{{- end }}

{{- /* The labels of an object. The argument is a list: the root, and the labels that users set for this object. */}}
{{- define "kube-ipvs.labels" -}}
{{- $root := first . -}}
{{ include "kube-ipvs.selector" $root }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
{{- with merge dict (last . | default dict) ($root.Values.commonLabels | default dict) }}
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
{{ with ($.Values.global).imageRegistry | default .registry }}{{ . }}/{{ end }}{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* The pull secrets of the release and of this chart, or nothing. Other charts write the global ones as names, too. */}}
{{- define "kube-ipvs.pull-secrets" -}}
{{- $all := list }}
{{- range concat ((.Values.global).imagePullSecrets | default list) (.Values.imagePullSecrets | default list) }}
{{- if kindIs "string" . }}{{ $all = append $all (dict "name" .) }}{{ else }}{{ $all = append $all . }}{{ end }}
{{- end }}
{{- if $all }}{{ uniq $all | toYaml }}{{ end }}
{{- end }}

{{- /* The content of the configuration file, or nothing. */}}
{{- define "kube-ipvs.config" -}}
{{- if .Values.config -}}
{{ merge (dict "apiVersion" "config.kube-ipvs.io/v1alpha1" "kind" "Configuration") .Values.config | toYaml }}
{{- else if .Values.kubeProxyConfig -}}
{{- $config := deepCopy .Values.kubeProxyConfig }}
{{- /* kube-proxy's kubeconfig is a file in its own pod. Without it, the agent uses its ServiceAccount. */}}
{{- with $config.clientConnection }}
{{- $file := .kubeconfig | default "" | toString }}{{ $mounted := false }}
{{- range $.Values.extraVolumeMounts }}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" $file) }}{{ $mounted = true }}{{ end }}
{{- end }}
{{- if not $mounted }}{{ $_ := set $config "clientConnection" (omit . "kubeconfig") }}{{ end }}
{{- end }}
{{ merge (dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration") $config | toYaml }}
{{- end }}
{{- end }}

{{- /* The address of a server of the agent: "default", "disabled", or the address. Flags override the configuration.
The argument is a list: the root, the name of the field, the beginning of its flags, and the host to which the port flag belongs. */}}
{{- define "kube-ipvs.server-address" -}}
{{- $values := (index . 0).Values }}{{ $field := index . 1 }}{{ $flag := index . 2 }}{{ $host := index . 3 }}
{{- /* The agent's own format disables a server with an empty address. Null is not set. */}}
{{- $address := "default" }}{{ $set := index ($values.config | default dict) $field }}
{{- if not (kindIs "invalid" $set) }}{{ $address = $set | default "disabled" }}{{ end }}
{{- /* kube-proxy writes an empty address for its default. */}}
{{- with index ($values.kubeProxyConfig | default dict) $field }}{{ $address = . }}{{ end }}
{{- if and (eq $flag "metrics") $values.metrics.bindAddress }}
{{- $address = printf "%s:%v" $values.metrics.bindAddress $values.metrics.port }}
{{- end }}
{{- range $values.extraArgs }}
{{- $name := splitList "=" . | first }}{{ $value := splitList "=" . | rest | join "=" }}
{{- if eq $name (printf "--%s-bind-address" $flag) }}{{ $address = $value | default "disabled" }}
{{- else if eq $name (printf "--%s-port" $flag) }}{{ $address = eq $value "0" | ternary "disabled" (printf "%s:%s" $host $value) }}
{{- end }}
{{- end }}
{{- $address }}
{{- end }}

{{- define "kube-ipvs.health-address" }}{{ include "kube-ipvs.server-address" (list . "healthzBindAddress" "healthz" "0.0.0.0") }}{{ end }}

{{- define "kube-ipvs.metrics-address" }}{{ include "kube-ipvs.server-address" (list . "metricsBindAddress" "metrics" "127.0.0.1") }}{{ end }}

{{- /* "true" if the values tell Prometheus to scrape the agents. */}}
{{- define "kube-ipvs.scraped" -}}
{{- with .Values.metrics }}{{ if or .podMonitor.enabled .serviceMonitor.enabled .service.enabled .scrapeAnnotations }}true{{ end }}{{ end }}
{{- end }}

{{- /* The options of a PodMonitor's or ServiceMonitor's endpoint. */}}
{{- define "kube-ipvs.scrape" -}}
- port: metrics
  {{- with .interval }}
  interval: {{ . }}
  {{- end }}
  {{- with .scrapeTimeout }}
  scrapeTimeout: {{ . }}
  {{- end }}
  relabelings:
    - sourceLabels: [__meta_kubernetes_pod_node_name]
      targetLabel: node
    {{- with .relabelings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- /* The settings that the agent reads only when it starts, or nothing. */}}
{{- define "kube-ipvs.restart-config" -}}
{{- range $config := list .Values.config .Values.kubeProxyConfig }}
{{- with pick ($config | default dict) "hostnameOverride" "clientConnection" "manifests" "dataPlane" "forward" "rules" "reserveNodePorts" "removeStartupTaint" "serviceProxyName" "statusSocket" "snapshot" "healthzBindAddress" "metricsBindAddress" "metrics" "enableProfiling" "oomScoreAdj" }}
{{ toJson . }}
{{- end }}
{{- with (($config).logging).format }}
logging.format: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* An alert, or nothing if it is off. The argument is a list: the alert in files/alerts.yaml, and the values of the rule. */}}
{{- define "kube-ipvs.alert" -}}
{{- $alert := index . 0 }}{{ $rule := index . 1 }}
{{- with get $rule.alerts $alert.alert }}
{{- if .enabled }}
{{- $expr := $alert.expr }}{{ if $rule.clusterLabel }}{{ $expr = $alert.perCluster | default $expr }}{{ end }}
{{- $texts := dict "summary" (include "kube-ipvs.alert-text" (list $alert.summary . $rule)) "description" $alert.description }}
{{- with $rule.runbookURL }}{{ $_ := set $texts "runbook_url" (print . (lower $alert.alert)) }}{{ end }}
{{- dict "alert" $alert.alert "expr" (include "kube-ipvs.alert-text" (list $expr . $rule)) "for" .for
  "labels" (merge (dict "severity" .severity) ($rule.additionalAlertLabels | default dict))
  "annotations" (merge $texts ($rule.additionalAlertAnnotations | default dict)) | list | toYaml }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A text of an alert with the values of the alert and of the rule. The argument is a list of all three. */}}
{{- define "kube-ipvs.alert-text" -}}
{{- $alert := index . 1 }}{{ $rule := index . 2 }}{{ $label := $rule.clusterLabel | default "" }}
{{- $clusters := $rule.clusters | default (printf "max_over_time((count by (%s) (up{job=\"kube-ipvs\"} == 1))[1d:10m])" $label) }}
{{- first . | replace "<threshold>" (toString $alert.threshold) | replace "<wanted>" (toString $alert.wanted)
  | replace "<clusters>" (printf "count by (%s) (%s)" $label $clusters) | replace "<label>" $label
  | replace "<cluster>" (empty $label | ternary "" (print $label ", "))
  | replace "<of-cluster>" (empty $label | ternary "" (printf " of cluster {{ $labels.%s }}" $label)) }}
{{- end }}
