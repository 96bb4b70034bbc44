// Package compile turns what the cluster asks for (model) into what the kernel should hold (want), and says which objects of
// the cluster cannot be served as written.
//
// It is pure: same input, same bytes out (I2). The unit of work is one Service, so that a change costs its own size. Only
// claims on addresses look across Services; an index keeps that local (I12).
//
// May import: model, want, kernel, inet; of the standard library nothing that has a clock, a random number or a logger.
package compile
