// Package doctor examines a node: it reads facts once and derives findings and one verdict from them.
//
// Checks access the machine only through Host, so a test can break one thing at a time. The report includes preflight's findings.
//
// May import: the standard library without I/O, explain, finding, inet, kernel, model, preflight, view and yaml.
package doctor
