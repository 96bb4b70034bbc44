// Package inspect renders the wanted state, plans, Services, connections and an agent's status as text for people and as JSON.
//
// It is pure. May import: kernel, want, diff, inet, model, view, and of kernel/ipvs the values.
package inspect
