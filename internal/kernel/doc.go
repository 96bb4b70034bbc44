// Package kernel contains the types of a node's kernel state: virtual servers, addresses, sets, chains and sysctls, the operations
// that change them, and their text in the syntax of ipvsadm, ip, ipset and iptables. The listings that ipvsadm and explain need
// (Table, RuleListing) are here too, so that pure packages import no backend.
//
// The same types describe the wanted state and the state that a backend read.
//
// May import: the standard library and inet.
package kernel
