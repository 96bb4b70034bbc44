// Package iphelper adds the addresses of Services to the loopback interface of Windows, with the IP Helper API, and reads the machine's
// own addresses and networks. An address is removed only if the agent has added it: a record contains the time at which Windows created
// each of the agent's addresses (decision 13).
//
// holder.go and node.go decide; the files for Windows read and write. There, one process at a time may open the addresses.
//
// May import: kernel (values).
package iphelper
