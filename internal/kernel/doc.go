// Package kernel says what a node's kernel holds: virtual servers, addresses, sets, chains and sysctls as plain values, the
// operations that change them, and the text in which an operator knows them (that of ipvsadm, ip, ipset and iptables).
//
// The values are used twice: as the state we want and as the state a backend read. Neither side has behaviour beyond
// comparing and printing itself.
//
// May import: the standard library and inet.
package kernel
