package ipset

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
)

// Error numbers of the hash set types (ip_set_hash.h).
const (
	errHashFull = nl.IPSET_ERR_TYPE_SPECIFIC + iota
	errHashElement
	errInvalidProtocol
	errMissingProtocol
	errRangeUnsupported
	errRange
)

var hashErrors = map[syscall.Errno]string{
	errHashFull:         "hash is full",
	errHashElement:      "not a valid element of this set (possibly a zero address)",
	errInvalidProtocol:  "invalid protocol",
	errMissingProtocol:  "protocol is missing",
	errRangeUnsupported: "range is not supported",
	errRange:            "invalid range",
}

// refusal adds a description to ipset's own error numbers, which are higher than all errno values.
func refusal(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno <= nl.IPSET_ERR_PRIVATE {
		return err
	}
	if text, ok := hashErrors[errno]; ok {
		return fmt.Errorf("%s (%w)", text, err)
	}
	return fmt.Errorf("%w (%w)", nl.IPSetError(errno), err)
}

func isErrno(err error, errno syscall.Errno) bool {
	var got syscall.Errno
	return errors.As(err, &got) && got == errno
}
