package ipvsadm

// VersionText is the output of ipvsadm -v: the version that this package emulates. Scripts parse it.
const VersionText = "ipvsadm v1.31 2019/12/24 (compiled with popt and IPVS v1.2.1)\n"

// HelpText lists the supported options. The packaged ipvsadm has more.
const HelpText = `ipvsadm of kube-ipvs: shows virtual servers like ipvsadm 1.31. It changes nothing.

  ipvsadm                              list all virtual servers
  ipvsadm -L|-l|--list [SERVICE] [OPTION...]
  ipvsadm -S|--save [-n]               print the commands that create them
  ipvsadm -h|--help
  ipvsadm -v|--version

SERVICE, to list only one:
  -t|--tcp-service ADDRESS:PORT   -u|--udp-service ADDRESS:PORT   --sctp-service ADDRESS:PORT
  -f|--fwmark-service MARK [-6|--ipv6]
  Put IPv6 addresses with a port in brackets.

List instead of virtual servers:
  -c|--connection     connections; --persistent-conn adds the persistence engine's data
  --timeout           timeouts of TCP, of TCP after FIN, and of UDP, in seconds
  --daemon            synchronization daemons

Columns (the first given option in this order wins):
  --stats             counters
  --rate              counters per second
  --thresholds        connection limits
  --persistent-conn   persistent connections
  --tun-info          tunnels

  -n|--numeric        addresses and ports as numbers, without looking up names
  -X|--exact          numbers in full, without K, M, G, T
  --nosort            the kernel's order
`
