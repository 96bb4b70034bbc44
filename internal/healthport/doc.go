// Package healthport tells load balancers whether this node has endpoints of a Service: it answers HTTP on the
// healthCheckNodePort of each LoadBalancer Service whose external traffic policy is Local.
//
// It owes nothing to NodePorts or to what the kernel holds. [Ports.Update] is called by the loop and never waits: it notes what
// is wanted, and [Ports.Run] opens and closes the ports beside the loop.
//
// May import: inet, model (names of Services), zap.
package healthport
