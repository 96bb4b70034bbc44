// Package inspect renders the wanted state, plans, Services, connections and an agent's status as text for people and as JSON.
//
// It is pure. It is large because each command has a table for people and a stable document for programs.
//
// May import: kernel, want, diff, inet, model and view.
package inspect
