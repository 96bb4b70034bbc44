package telemetry

const docsHead = `# Metrics, health and Events

<!-- Written by "go test ./internal/telemetry -update"; change the text there. -->

## Metrics

` + "`--metrics-bind-address`" + ` (127.0.0.1:10249) serves ` + "`/metrics`" + `, ` + "`/healthz`" + ` ("ok" as long as the program runs), ` + "`/proxyMode`" + ` ("ipvs"), and with
` + "`--profiling`" + ` ` + "`/debug/pprof/`" + `. An empty address switches the server off.

No series is made for each Service or endpoint: their number does not grow with the cluster. Besides these there are the
` + "`go_*` and `process_*`" + ` series of every Go program.

| name | type | labels | meaning |
|---|---|---|---|
`

const docsTail = `
### What kube-proxy has and we do not

The ` + "`kubeproxy_*`" + ` series above are for dashboards and alerts that exist. Of kube-proxy's other series in ipvs mode there are
none, because the agent does not know what they say:

- ` + "`kubeproxy_sync_proxy_rules_{service,endpoint}_changes_{total,pending}`" + `: changes are not counted where they come in.
  ` + "`kube_ipvs_services_compiled_total`" + ` counts the work that they make.
- ` + "`kubeproxy_network_programming_duration_seconds`" + `: when a change was made in the cluster is not kept.
- ` + "`kubeproxy_sync_proxy_rules_no_local_endpoints_total`, `kubeproxy_conntrack_reconciler_*`, `rest_client_*`" + `.

## Health

` + "`--healthz-bind-address`" + ` (0.0.0.0:10256) serves

| path | 200 when | for |
|---|---|---|
| ` + "`/healthz`" + ` | healthy, and the node may get traffic | load balancers |
| ` + "`/livez`" + ` | healthy | liveness probes |
| ` + "`/readyz`" + ` | a full pass has succeeded since the start | readiness probes, rollouts |

and 503 otherwise. Healthy means that a pass has ended within the last two periods of ` + "`--ipvs-sync-period`" + `, and that passes have
not been failing for longer than that; whether a change waits makes no difference. Failing ends with a full pass that
succeeds, because no other looks at what had failed. An agent that has not heard from its source yet makes no passes, and so
becomes unhealthy too: it does not know what to serve. ` + "`/healthz` and `/livez`" + ` answer in JSON with kube-proxy's fields and, where
unhealthy, a ` + "`reason`" + `.

An address that cannot be listened on is tried again every 5 seconds; Services are served meanwhile. Both 0.0.0.0
and [::] mean every address of both families.

## Events

With an API server as the source, each Problem of a Service becomes an Event on that Service: ` + "`ServiceProblem`" + ` (Warning) when it
appears or changes, ` + "`ServiceProblemSolved`" + ` (Normal) when it is gone. Equal Events of several nodes have the same name, so that
the first node posts it and the others do not: at most one in ten minutes. They are sent slowly, and dropped when there are
too many; ` + "`kube_ipvs_events_total`" + ` counts them. The agent needs to list ` + "`services`" + `, and to create ` + "`events`" + ` in
` + "`events.k8s.io`" + `.
`
