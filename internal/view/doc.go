// Package view says what a running agent shows of itself: immutable values, and their form in JSON. The agent makes them when
// somebody asks, the status socket carries them, the inspection commands print them, and explain compares them with the kernel.
//
// The JSON is for programs, too: docs/inspection.md describes it, and a field that is there stays.
//
// May import: inet, kernel, model and want.
package view
