// Package host proves that the Debian package serves Services on a host without Kubernetes: a real systemd starts the unit with all
// its restrictions.
package host
