// Package inspect renders the wanted state, plans, Services, connections and an agent's status as text and as JSON.
// It is pure.
//
// May import: finding, kernel, want, diff, inet, model and view, and a YAML encoder.
package inspect
