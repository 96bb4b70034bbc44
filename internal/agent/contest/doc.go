// Package contest detects that another program, such as a second proxy, keeps changing what the agent repairs.
//
// May import: inet, kernel and model. The package has no clock: callers pass the time.
package contest
