package telemetry

const docsHead = `# Metrics, health and Events

<!-- Written by "go test ./internal/telemetry -update"; change the text there. -->

## Metrics

` + "`--metrics-bind-address`" + ` (127.0.0.1:10249) serves ` + "`/metrics`" + `, ` + "`/healthz`" + ` ("ok" as long as the program runs), ` + "`/proxyMode`" + ` ("ipvs"),
` + "`/configz`" + ` (the settings in force, in JSON), and with ` + "`--profiling`" + ` ` + "`/debug/pprof/`" + `. An empty address switches the server off.

Besides these there are the ` + "`go_*` and `process_*`" + ` series of every Go program. What concerns an API server is there only where one
is the source.

| name | type | labels | meaning |
|---|---|---|---|
`

const docsTail = `
### Services and endpoints

` + "`kube_ipvs_service_*`" + ` tell of the ports of Services, with their names: what goes through all virtual servers of a port is added up.
` + "`kube_ipvs_endpoint_*`" + ` do the same for each endpoint, and are off unless asked for. Their number is bounded: five series for each
of ` + "`--metrics-service-ports`" + ` (1000) ports, six for each of ` + "`--metrics-endpoints`" + ` (0) endpoints. Where there are more, ports
with connections come before those without, who has series keeps them, and ` + "`kube_ipvs_traffic_series_omitted`" + ` counts the others
of a kind that is on.
Series end with their Service, or endpoint.

They are read from the kernel at each scrape: with one request, and one more for each virtual server if endpoints are told of. The
kernel adds them up every two seconds, and goes on while no agent runs. When a virtual server is made again, what it has counted
since the last scrape is lost.

    sum by (service_namespace, service_name) (rate(kube_ipvs_service_connections_total[5m]))

### What kube-proxy has and we do not

The ` + "`kubeproxy_*` and `rest_client_*`" + ` series above are for dashboards and alerts that exist. Of kube-proxy's other series in ipvs mode
there are none, because the agent does not know what they say:

- ` + "`kubeproxy_conntrack_reconciler_*`" + `: flows are forgotten for all families at once (` + "`kube_ipvs_ended_flows_total`" + `).

Of kube-proxy's paths ` + "`/metrics/slis`, `/flagz`, `/statusz` and `/debug/flags/v`" + ` are not there.

## Health

` + "`--healthz-bind-address`" + ` (0.0.0.0:10256) serves

| path | 200 when | for |
|---|---|---|
| ` + "`/healthz`" + ` | the agent is healthy, and the node is eligible | load balancers |
| ` + "`/livez`" + ` | a restart of the agent would not help | liveness probes |
| ` + "`/readyz`" + ` | a full pass has succeeded since the start, and the API server is heard | startup and readiness probes, rollouts |

and 503 otherwise. ` + "`/healthz` and `/livez`" + ` answer in JSON with kube-proxy's fields and, where they say 503, a ` + "`reason`" + `;
` + "`/readyz`" + ` answers in plain text. What each of them says, and what it leaves out on purpose:

| | ` + "`/healthz`, `healthy`" + ` | ` + "`/healthz`, `nodeEligible`" + ` | ` + "`/livez`" + ` | ` + "`/readyz`" + ` |
|---|---|---|---|---|
| just started, no pass yet | well for two periods | eligible | alive | not ready |
| API server away since the start | unwell after two periods | eligible | alive | not ready |
| API server away later | well; ` + "`stale`" + ` after 5 minutes | eligible | alive | not ready after 5 minutes |
| passes fail, for less than two periods | well | eligible | alive | ready |
| passes fail for longer | unwell | eligible | alive | ready |
| no pass ends for two periods | unwell | eligible | alive | ready |
| no pass ends for two periods and 5 minutes | unwell | eligible | not alive | ready |
| the Node is being deleted, or tainted by the cluster autoscaler | well | not eligible | alive | ready |
| the API server knows no such Node | well | not eligible | alive | ready |

- A period is ` + "`--ipvs-sync-period`" + `. Failing begins with a failed pass, whether or not a change waits for it, and ends with a full
  pass that succeeds, because no other looks at what had failed.
- **A restart does not bring the API server back, nor another kernel.** Both are asked again and again, and meanwhile the kernel
  serves what it was last told. Only a loop that is stuck makes ` + "`/livez`" + ` fail. Point liveness probes at ` + "`/livez`" + `: ` + "`/healthz`" + ` fails
  on a node that is being drained, where a restart would do harm.
- **An API server that is away does not turn traffic away.** It is away for all nodes at once; if all said so to their load
  balancers, an outage of the control plane would become one of every Service. What is served may be outdated then: ` + "`stale`" + ` in
  the answers of ` + "`/healthz` and `/livez`, `/readyz`" + ` and ` + "`kube_ipvs_source_last_heard_timestamp_seconds`" + ` say so.
- **An agent that starts while the API server is away** does not know what to serve, and says so: the node may be new.
- The Node is the one of that name among the Node objects. With ` + "`--manifests`" + ` none is needed, and one that is there counts.

An address that cannot be listened on is tried again every 5 seconds; Services are served meanwhile. Both 0.0.0.0
and [::] mean every address of both families.

### Health checks of single Services

A LoadBalancer Service with ` + "`externalTrafficPolicy: Local`" + ` has a ` + "`healthCheckNodePort`" + `, on which load balancers ask every node. It answers
on any path, as kube-proxy does: 200 where this node has a ready endpoint of the Service and the agent is healthy, else 503.
Endpoints that terminate do not count. Whether the node is eligible makes no difference: its endpoints leave it in their own time.

    HTTP/1.1 200 OK
    Content-Type: application/json
    X-Content-Type-Options: nosniff
    X-Load-Balancing-Endpoint-Weight: 2

    {
    	"service": {
    		"namespace": "default",
    		"name": "web"
    	},
    	"localEndpoints": 2,
    	"serviceProxyHealthy": true
    }

It is listened to at all addresses of the families that this node serves. While the agent is stopped nobody answers.

| fault | what happens |
|---|---|
| another program has the port | the Service gets a Warning, ` + "`FailedToStartServiceHealthcheck`" + `; addresses where the port is free are served; tried again after 1 s, then ever more rarely, every 30 s at most; a Normal Event when it works |
| another Service has the same port (manifests allow it) | as above; the second gets the port as soon as the first leaves it |
| the port passes from one Service to another in one change | closed before it is opened: no failure |
| an address does not exist yet, or any more | as above; the other addresses are served |
| no file descriptors, or the socket breaks | as above: opened again after a second |
| the port changes many times | only the last one counts |
| clients connect and send nothing, or read nothing | cut off after 5 s, 10 s; unused connections after 60 s |
| many clients | 512 connections to all ports together; one more cuts off the oldest, so that who comes gets an answer |

## Events

With an API server as the source, what concerns somebody becomes an Event.

| on | reasons (trouble, end) | what |
|---|---|---|
| Service | ` + "`ServiceProblem`, `ServiceProblemSolved`" + ` | a Problem: something in the Service or its endpoints that only its owner can put right |
| Service | ` + "`ForeignVirtualServer`, `ForeignVirtualServerGone`" + ` | somebody else's virtual server stands where the Service wants one, on the node that the Event names |
| Service | ` + "`FailedToStartServiceHealthcheck`, `StartedServiceHealthcheck`" + ` | its ` + "`healthCheckNodePort`" + ` on the node that the Event names |
| Node | ` + "`Starting`" + ` | the agent has started |
| Node | ` + "`FamilyNotServed`" + ` | this node does not serve Services of a family, and why |
| Node | ` + "`ProgrammingFailing`, `ProgrammingWorks`" + ` | passes have been failing for two periods |
| Node | ` + "`NodeProblem`, `NodeProblemSolved`" + ` | something in the Node object cannot be read, or the kernel lacks the scheduler of the configuration |

Trouble is a Warning, its end a Normal Event. Equal Events of several nodes have the same name, so that the first node posts it and
the others do not: at most one in ten minutes. They are sent slowly, and dropped when there are too many;
` + "`kube_ipvs_events_total`" + ` counts them. The agent needs to list ` + "`services`" + `, and to create ` + "`events`" + ` in ` + "`events.k8s.io`" + ` (those on
Nodes in the namespace ` + "`default`" + `).
`
