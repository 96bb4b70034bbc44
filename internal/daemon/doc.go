// Package daemon assembles the agent from its configuration, source, kernel, loop, telemetry and status socket. It makes no decisions itself. The
// plan and cleanup commands use it to open the same node.
//
// May import: every package that it connects, client-go's rest and zap.
package daemon
