// Package telemetry publishes the state of the agent as metrics, health endpoints and Kubernetes Events. Its inputs are
// [agent.Report] and the state of a [Source]; it reads neither the kernel nor the cluster.
//
// The loop calls [Telemetry.Observe], which never blocks: it updates numbers in memory and queues Events. HTTP servers and the
// sender of Events run in their own goroutines, and their failures do not affect the loop.
//
// May import: agent, healthport, inet, kernel, model (the parts of Reports), the Prometheus client, k8s.io (Events), zap.
package telemetry
