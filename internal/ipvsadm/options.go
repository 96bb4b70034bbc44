package ipvsadm

// Command is the command that the first option selects.
type Command int

// The read-only commands, and one value for all other commands.
const (
	List Command = iota
	Save
	Help
	Version
	writing
)

func (c Command) String() string {
	if c == Save {
		return "save"
	}
	return "list"
}

// option is an option of a command. Conflicts are reported in this order, as in ipvsadm.
type option uint

const (
	optNumeric option = iota
	optConnection
	optService
	optScheduler
	optPersistent
	optNetmask
	optServer
	optForwarding
	optWeight
	optUpper
	optLower
	optInterface
	optTimeout
	optDaemon
	optStats
	optRate
	optThresholds
	optPersistentConn
	optNoSort
	optSyncID
	optExact
	optOnePacket
	optEngine
	optSchedFlags
	optGroup
	optMcastPort
	optTTL
	optMaxLen
	optTunInfo
	optTunType
	optTunPort
	optTunNoCsum
	optTunCsum
	optTunRemCsum
	optionCount

	// ipvsadm does not check these two for conflicts.
	optSort
	optIPv6
)

var optionNames = [optionCount]string{
	optNumeric: "numeric", optConnection: "connection", optService: "service-address", optScheduler: "scheduler",
	optPersistent: "persistent", optNetmask: "netmask", optServer: "real-server", optForwarding: "forwarding-method",
	optWeight: "weight", optUpper: "u-threshold", optLower: "l-threshold", optInterface: "mcast-interface",
	optTimeout: "timeout", optDaemon: "daemon", optStats: "stats", optRate: "rate", optThresholds: "thresholds",
	optPersistentConn: "persistent-conn", optNoSort: "nosort", optSyncID: "syncid", optExact: "exact", optOnePacket: "ops",
	optEngine: "pe", optSchedFlags: "sched-flags", optTunInfo: "tun-info", optTunType: "tun-type", optTunPort: "tun-port",
	optTunNoCsum: "tun-nocsum", optTunCsum: "tun-csum", optTunRemCsum: "tun-remcsum", optMaxLen: "sync-maxlen",
	optGroup: "mcast-group", optMcastPort: "mcast-port", optTTL: "mcast-ttl",
}

type optionSet uint64

func setOf(options ...option) (s optionSet) {
	for _, o := range options {
		s |= 1 << o
	}
	return s
}

func (s optionSet) has(o option) bool { return s&(1<<o) != 0 }

// allowed lists the valid options of each command. Like ipvsadm, List accepts a syncid.
var allowed = map[Command]optionSet{
	List: setOf(optNumeric, optConnection, optService, optTimeout, optDaemon, optStats, optRate, optThresholds,
		optPersistentConn, optNoSort, optSyncID, optExact, optTunInfo),
	Save: setOf(optNumeric),
}

type valueKind int

const (
	noValue valueKind = iota
	needsValue
	mayHaveValue
)

// word is one spelling of a command or an option.
type word struct {
	long      string
	short     byte // 0 for none
	value     valueKind
	isCommand bool
	command   Command
	option    option
	tag       string // the service type, for optService
}

// The service types. The first three are also the protocol names in lists of port names.
const (
	tagTCP  = "tcp"
	tagUDP  = "udp"
	tagSCTP = "sctp"
	tagMark = "fwmark"
)

func command(long string, short byte, c Command) word {
	return word{long: long, short: short, isCommand: true, command: c}
}

func flag(long string, short byte, o option) word { return word{long: long, short: short, option: o} }

func valued(long string, short byte, o option) word {
	return word{long: long, short: short, option: o, value: needsValue}
}

func service(long string, short byte, tag string) word {
	return word{long: long, short: short, option: optService, value: needsValue, tag: tag}
}

var words = []word{
	command("list", 'L', List), command("", 'l', List), command("save", 'S', Save), command("help", 'h', Help),
	command("version", 'v', Version),

	command("add-service", 'A', writing), command("edit-service", 'E', writing), command("delete-service", 'D', writing),
	command("add-server", 'a', writing), command("edit-server", 'e', writing), command("delete-server", 'd', writing),
	command("clear", 'C', writing), command("restore", 'R', writing), command("zero", 'Z', writing),
	command("set", 0, writing), command("start-daemon", 0, writing), command("stop-daemon", 0, writing),

	service("tcp-service", 't', tagTCP), service("udp-service", 'u', tagUDP), service("sctp-service", 0, tagSCTP),
	service("fwmark-service", 'f', tagMark),

	flag("numeric", 'n', optNumeric), flag("connection", 'c', optConnection), flag("timeout", 0, optTimeout),
	flag("daemon", 0, optDaemon), flag("stats", 0, optStats), flag("rate", 0, optRate), flag("exact", 'X', optExact),
	flag("thresholds", 0, optThresholds), flag("persistent-conn", 0, optPersistentConn), flag("tun-info", 0, optTunInfo),
	flag("nosort", 0, optNoSort), flag("sort", 0, optSort), flag("ipv6", '6', optIPv6),
	valued("syncid", 0, optSyncID),

	valued("scheduler", 's', optScheduler), {long: "persistent", short: 'p', option: optPersistent, value: mayHaveValue},
	valued("netmask", 'M', optNetmask), valued("pe", 0, optEngine), valued("sched-flags", 'b', optSchedFlags),
	flag("ops", 'o', optOnePacket),
	valued("real-server", 'r', optServer), flag("gatewaying", 'g', optForwarding), flag("ipip", 'i', optForwarding),
	flag("masquerading", 'm', optForwarding), valued("weight", 'w', optWeight), valued("u-threshold", 'x', optUpper),
	valued("l-threshold", 'y', optLower), valued("tun-type", 0, optTunType), valued("tun-port", 0, optTunPort),
	flag("tun-nocsum", 0, optTunNoCsum), flag("tun-csum", 0, optTunCsum), flag("tun-remcsum", 0, optTunRemCsum),
	valued("mcast-interface", 0, optInterface), valued("sync-maxlen", 0, optMaxLen), valued("mcast-group", 0, optGroup),
	valued("mcast-port", 0, optMcastPort), valued("mcast-ttl", 0, optTTL),
}

func findLong(name string) (word, bool) {
	for _, w := range words {
		if w.long == name && name != "" {
			return w, true
		}
	}
	return word{}, false
}

func findShort(c byte) (word, bool) {
	for _, w := range words {
		if w.short == c && c != 0 {
			return w, true
		}
	}
	return word{}, false
}
