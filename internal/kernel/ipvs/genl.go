package ipvs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Generic netlink: https://docs.kernel.org/networking/generic_netlink.html; the IPVS family: include/uapi/linux/ip_vs.h.
const (
	familyName    = "IPVS"
	familyVersion = 1
	genlHeaderLen = 4

	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8
	cmdSetConfig  = 12
	cmdGetConfig  = 13

	attrService       = 1
	attrDest          = 2
	attrTimeoutTCP    = 4
	attrTimeoutTCPFin = 5
	attrTimeoutUDP    = 6

	svcAddressFamily = 1
	svcProtocol      = 2
	svcAddress       = 3
	svcPort          = 4
	svcFirewallMark  = 5
	svcScheduler     = 6
	svcFlags         = 7
	svcTimeout       = 8
	svcNetmask       = 9

	destAddress               = 1
	destPort                  = 2
	destForwarding            = 3
	destWeight                = 4
	destUpperThreshold        = 5
	destLowerThreshold        = 6
	destActive                = 7
	destInactive              = 8
	destPersistent            = 9
	destAddressFamily         = 11
	allFlags                  = ^uint32(0)
	fullMaskIPv4       uint32 = 0xffffffff
)

func genlHeader(cmd, version uint8) []byte { return []byte{cmd, version, 0, 0} }

func body(payload []byte) ([]byte, error) {
	if len(payload) < genlHeaderLen {
		return nil, errors.New("read answer: no generic netlink header")
	}
	return payload[genlHeaderLen:], nil
}

func familyRequest() nlbatch.Request {
	attrs := nlbatch.AppendString(nil, unix.CTRL_ATTR_FAMILY_NAME, familyName)
	return nlbatch.Request{Type: unix.GENL_ID_CTRL, Payload: append(genlHeader(unix.CTRL_CMD_GETFAMILY, 1), attrs...)}
}

func decodeFamily(payload []byte) (id uint16, err error) {
	attrs, err := body(payload)
	if err != nil {
		return 0, err
	}
	err = nlbatch.EachAttr(attrs, func(typ uint16, v []byte) (err error) {
		if typ == unix.CTRL_ATTR_FAMILY_ID {
			id, err = nlbatch.Uint16(v)
		}
		return err
	})
	return id, err
}
