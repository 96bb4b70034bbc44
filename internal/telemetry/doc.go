// Package telemetry tells the world how the agent is doing: metrics, health and Kubernetes Events. They are made from
// [agent.Report], and from what a [Source] says of itself; what neither says is not told.
//
// [Telemetry.Observe] is called by the loop and never waits for anybody: it updates numbers in memory, and puts Events into a
// bounded queue. Servers and the sender of Events run beside the loop, and none of their failures concerns it.
//
// May import: agent, healthport, inet, kernel, model (what Reports are made of), the Prometheus client, k8s.io (Events), zap.
package telemetry
