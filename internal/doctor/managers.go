package doctor

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	networkManager = "NetworkManager"
	networkd       = "systemd-network" // the kernel truncates process names
	managers       = "network services that manage " + kernel.Device
)

// readManagers detects whether NetworkManager or systemd-networkd manages kube-ipvs0: either may set it down or remove
// its addresses.
func (f *Facts) readManagers(h reader) {
	if f.Container {
		f.unread(managers, errHostFiles)
		return
	}
	device, exists := f.named(kernel.Device)
	if f.running(networkManager) != "" {
		f.readNetworkManager(h, device.Index, exists)
	}
	if f.running(networkd) != "" {
		f.readNetworkd(h, device.Index, exists)
	}
}

// readNetworkManager reads the device's state from NetworkManager. If the state is unknown, it reads NetworkManager's
// configuration.
func (f *Facts) readNetworkManager(h reader, index int, exists bool) {
	if exists {
		file := fmt.Sprintf("/run/NetworkManager/devices/%d", index)
		state, known := h.may(file, managers)
		switch setting(state, "managed") {
		case "true":
			f.Managers = append(f.Managers, "NetworkManager: managed=true in "+file)
			return
		case "false":
			return
		}
		if known {
			f.unread(managers, errors.New(file+" does not show whether NetworkManager manages it"))
		}
	}
	files := h.mayReadAll(managers, ".conf", "/etc/NetworkManager/conf.d", "/run/NetworkManager/conf.d", "/usr/lib/NetworkManager/conf.d")
	main, _ := h.may("/etc/NetworkManager/NetworkManager.conf", managers)
	if !slices.ContainsFunc(append(files, main), leavesAlone) {
		f.Unlisted = append(f.Unlisted, "NetworkManager: no unmanaged-devices setting in its configuration names "+kernel.Device)
	}
}

// leavesAlone reports whether a NetworkManager configuration excludes the device.
func leavesAlone(config string) bool {
	for line := range strings.Lines(config) {
		name, value, _ := strings.Cut(line, "=")
		if strings.TrimRight(strings.TrimSpace(name), "+") != "unmanaged-devices" {
			continue
		}
		for spec := range strings.FieldsFuncSeq(value, func(c rune) bool { return c == ';' || c == ',' || c == '\n' }) {
			kind, pattern, _ := strings.Cut(strings.TrimSpace(spec), ":")
			if kind == "interface-name" && matchesDevice(strings.TrimPrefix(pattern, "=")) || kind == "type" && pattern == "dummy" || kind == "*" {
				return true
			}
		}
	}
	return false
}

func matchesDevice(pattern string) bool {
	matched, err := path.Match(pattern, kernel.Device)
	return err == nil && matched
}

// readNetworkd reads the device's state from systemd-networkd. If the state is unknown, it reads the .network files.
func (f *Facts) readNetworkd(h reader, index int, exists bool) {
	if exists {
		file := fmt.Sprintf("/run/systemd/netif/links/%d", index)
		if state, known := h.may(file, managers); known {
			if admin := setting(state, "ADMIN_STATE"); admin != "unmanaged" && admin != "" {
				f.Managers = append(f.Managers, fmt.Sprintf("systemd-networkd: ADMIN_STATE=%s in %s, by %s", admin, file, setting(state, "NETWORK_FILE")))
			}
			return
		}
	}
	files := map[string]string{} // a file overrides files of the same name in later directories
	for _, dir := range []string{"/etc/systemd/network", "/run/systemd/network", "/usr/lib/systemd/network"} {
		for _, name := range h.mayList(dir, managers) {
			if _, known := files[name]; !known && strings.HasSuffix(name, ".network") {
				files[name], _ = h.may(dir+"/"+name, managers)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) { // the first matching file counts
		if matchesNetwork(files[name]) {
			if !slices.Contains([]string{"yes", "true", "on", "1"}, strings.ToLower(setting(files[name], "Unmanaged"))) {
				f.Managers = append(f.Managers, "systemd-networkd: "+name+" matches "+kernel.Device)
			}
			return
		}
	}
}

// matchesNetwork reports whether the [Match] section of a .network file matches the device.
func matchesNetwork(config string) bool {
	_, section, found := strings.Cut(config, "[Match]")
	section, _, _ = strings.Cut(section, "\n[")
	for _, other := range []string{"MACAddress", "PermanentMACAddress", "Driver", "Path"} { // conditions that only hardware meets
		found = found && setting(section, other) == ""
	}
	names, typ, kind := strings.Fields(setting(section, "Name")), setting(section, "Type"), setting(section, "Kind")
	if !found || len(names) == 0 && typ == "" && kind == "" || typ != "" && typ != "*" && typ != "ether" || kind != "" && kind != "*" && kind != "dummy" {
		return false
	}
	return len(names) == 0 || matchesNames(names)
}

// matchesNames reports whether a name in the list matches the device. An exclamation mark before the first name inverts
// the result.
func matchesNames(names []string) bool {
	first, negated := strings.CutPrefix(names[0], "!")
	return slices.ContainsFunc(append([]string{first}, names[1:]...), matchesDevice) != negated
}

// setting returns a value from a file of name=value lines, or "" if the file does not set it.
func setting(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, found := strings.Cut(line, "="); found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func checkManagers(f Facts) []finding.Finding {
	const remedy = "NetworkManager: unmanaged-devices=interface-name:" + kernel.Device + " under [keyfile] in /etc/NetworkManager/conf.d/" + kernel.Device +
		".conf; systemd-networkd: a file /etc/systemd/network/00-" + kernel.Device + ".network with [Match] Name=" + kernel.Device + " and [Link] Unmanaged=yes. Then restart the service"
	switch {
	case len(f.Managers) > 0:
		return finding.One(finding.Warning, kernel.Device, "another service manages it, and may set it down or remove the addresses of Services",
			append(slices.Clone(f.Managers), f.Unlisted...), remedy)
	case len(f.Unlisted) > 0:
		return finding.One(finding.Notice, kernel.Device, "the configuration of a network service does not exclude it", f.Unlisted, remedy)
	}
	return nil
}
