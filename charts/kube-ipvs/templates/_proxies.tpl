{{- /* "true" if templates can read the cluster. With `helm template`, which Argo CD also uses, every lookup returns nothing. */}}
{{- define "kube-ipvs.sees-cluster" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}true{{ end }}
{{- end }}

{{- /* Describes the first other proxy found on the agent's nodes, and how to switch it off. Empty if there is no other proxy. */}}
{{- define "kube-ipvs.other-proxies" -}}
{{- $found := concat (include "kube-ipvs.proxy-daemonsets" . | fromJsonArray) (include "kube-ipvs.proxies-on-nodes" . | fromJsonArray) }}
{{- with $found }}{{ first . }}{{ end }}
{{- end }}

{{- /* Takes a list: the proxy, its number of nodes, where it runs, and how to switch it off. */}}
{{- define "kube-ipvs.proxy-found" -}}
{{- $nodes := index . 1 -}}
{{- printf "%s runs on %d node%s %s and would undo the work of kube-ipvs: %s" (first .) $nodes (eq $nodes 1 | ternary "" "s") (index . 2) (last .) }}
{{- end }}

{{- define "kube-ipvs.proxy-daemonsets" -}}
{{- $found := list }}
{{- range list
  (list "kube-system/kube-proxy" "kube-proxy" "keep kube-proxy off the nodes of kube-ipvs (docs/replace-kube-proxy.md)")
  (list "openshift-kube-proxy/openshift-kube-proxy" "kube-proxy" "set deployKubeProxy: false (docs/distributions/openshift.md)")
  (list "openshift-ovn-kubernetes/ovnkube-node" "OVN-Kubernetes" "use another network plugin (docs/distributions/openshift.md)")
  (list "kube-system/anetd" "GKE Dataplane V2" "use a cluster without it (docs/distributions/gke.md)") }}
{{- $name := splitList "/" (first .) }}
{{- $proxy := lookup "apps/v1" "DaemonSet" (first $name) (last $name) }}
{{- $nodes := dig "status" "desiredNumberScheduled" 0 $proxy | int }}
{{- $divided := and (hasKey ($.Values.nodeSelector | default dict) "kube-ipvs.io/agent") (contains "kube-ipvs.io/agent" (dig "spec" "template" "spec" dict $proxy | toJson)) }}
{{- if and $nodes (not $divided) }}
{{- $found = append $found (include "kube-ipvs.proxy-found" (list (index . 1) $nodes (printf "(DaemonSet %s)" (first .)) (last .))) }}
{{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{- /* Finds kube-proxy in static pods on nodes that the agent's nodeSelector selects, and kube-proxy inside k3s and MicroK8s. */}}
{{- define "kube-ipvs.proxies-on-nodes" -}}
{{- $mirrors := dict }}{{ $static := 0 }}{{ $k3s := 0 }}{{ $servers := 0 }}{{ $off := 0 }}{{ $kubelite := 0 }}
{{- range dig "items" list (lookup "v1" "Pod" "kube-system" "") }}
{{- if hasKey (dig "metadata" "annotations" dict .) "kubernetes.io/config.mirror" }}{{ $_ := set $mirrors .metadata.name true }}{{ end }}
{{- end }}
{{- range dig "items" list (lookup "v1" "Node" "" "") }}
{{- $labels := dig "metadata" "labels" dict . }}
{{- $selected := true }}
{{- range $name, $value := $.Values.nodeSelector }}{{ if ne (get $labels $name) (toString $value) }}{{ $selected = false }}{{ end }}{{ end }}
{{- if and $selected (hasKey $mirrors (print "kube-proxy-" .metadata.name)) }}{{ $static = add1 $static }}{{ end }}
{{- if contains "+k3s" (dig "status" "nodeInfo" "kubeletVersion" "" .) }}
{{- $k3s = add1 $k3s }}
{{- /* k3s writes its settings into this annotation, as flags. k3s agents take this setting from their server. */}}
{{- $args := dig "metadata" "annotations" "k3s.io/node-args" "" . }}
{{- if hasPrefix "[\"server\"" $args }}
{{- $servers = add1 $servers }}
{{- if and (contains "\"--disable-kube-proxy\"" $args) (not (contains "\"--disable-kube-proxy\",\"false\"" $args)) }}{{ $off = add1 $off }}{{ end }}
{{- end }}
{{- end }}
{{- if hasKey $labels "microk8s.io/cluster" }}{{ $kubelite = add1 $kubelite }}{{ end }}
{{- end }}
{{- $found := list }}
{{- range list
  (list $static "(static pods kube-system/kube-proxy-NODE)" "switch it off in the configuration of the distribution (docs/distributions)")
  (list (and (or (not $servers) (ne $servers $off)) $k3s) "(inside k3s)" "set disable-kube-proxy: true on all servers (docs/distributions/k3s.md)")
  (list $kubelite "(inside MicroK8s' kubelite, which always starts it)" "use the preset microk8s (docs/distributions/microk8s.md)") }}
{{- $nodes := int (first .) }}
{{- if $nodes }}
{{- $found = append $found (include "kube-ipvs.proxy-found" (list "kube-proxy" $nodes (index . 1) (last .))) }}
{{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}
