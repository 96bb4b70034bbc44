// Package view defines what a running agent shows of itself: immutable values, and their JSON. The agent makes them on request, the
// status socket carries them, the inspection commands print them, and explain compares them with the kernel.
//
// Programs read the JSON, too. docs/inspection.md describes it; its fields are stable.
//
// May import: inet, kernel, model and want.
package view
