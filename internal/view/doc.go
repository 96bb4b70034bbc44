// Package view defines the state that a running agent exposes, as immutable values with a JSON form. The agent creates the values on
// request, the status socket transports them, the inspection commands print them, and explain compares them with the kernel.
//
// docs/inspection.md describes the JSON. Its fields are stable.
//
// May import: finding, inet, kernel, model and want.
package view
