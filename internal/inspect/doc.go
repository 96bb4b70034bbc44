// Package inspect shows the wanted state, plans, Services, connections and an agent's status as text that a support engineer
// reads, and as JSON.
//
// It is pure. May import: kernel, want, diff, inet, model, view, and of kernel/ipvs the values.
package inspect
