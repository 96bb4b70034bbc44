// Package healthport responds to the health checks of load balancers. It serves HTTP on the healthCheckNodePort of each
// LoadBalancer Service with external traffic policy Local. The status is 200 if this node has endpoints of the Service.
//
// It depends on neither node ports nor the state of the kernel. The loop calls [Ports.Update], which records the wanted
// ports and never blocks; [Ports.Run] opens and closes them.
//
// May import: inet, model (names of Services), zap.
package healthport
