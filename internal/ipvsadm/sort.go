package ipvsadm

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// sortTable returns a copy of a table in ipvsadm's order.
func sortTable(services []kernel.TableServer) []kernel.TableServer {
	services = slices.Clone(services)
	for i := range services {
		d := slices.Clone(services[i].Destinations)
		mergeSort(d, compareDestinations)
		services[i].Destinations = d
	}
	mergeSort(services, compareServices)
	return services
}

func compareServices(a, b kernel.TableServer) int {
	return cmp.Or(
		compareWrapped(a.Key.Mark, b.Key.Mark),
		cmp.Compare(a.Key.Family, b.Key.Family),
		cmp.Compare(a.Key.Protocol, b.Key.Protocol),
		compareAddresses(a.Key.Addr.Addr(), b.Key.Addr.Addr()),
		cmp.Compare(a.Key.Addr.Port(), b.Key.Addr.Port()),
	)
}

func compareDestinations(a, b kernel.TableDestination) int {
	return cmp.Or(
		compareAddresses(a.Addr.Addr(), b.Addr.Addr()),
		cmp.Compare(a.Addr.Port(), b.Addr.Port()),
	)
}

// For IPv4, all words but the first are zero.
func compareAddresses(a, b netip.Addr) int {
	x, y := addressWords(a), addressWords(b)
	for i := range x {
		if c := compareWrapped(x[i], y[i]); c != 0 {
			return c
		}
	}
	return 0
}

func addressWords(a netip.Addr) (words [4]uint32) {
	for i, b := 0, a.AsSlice(); len(b) >= 4; i, b = i+1, b[4:] {
		words[i] = binary.BigEndian.Uint32(b)
	}
	return words
}

// compareWrapped compares as ipvsadm does: by the sign of a 32-bit difference. For example, 203.0.113.9 sorts before
// 10.0.0.1, and the order is not transitive.
func compareWrapped(a, b uint32) int { return int(int32(a - b)) }

// mergeSort is the C library's qsort algorithm. Another algorithm could yield a different order, because compareWrapped is
// not transitive.
func mergeSort[T any](all []T, compare func(a, b T) int) {
	if len(all) < 2 {
		return
	}
	half := len(all) / 2
	left, right := slices.Clone(all[:half]), all[half:]
	mergeSort(left, compare)
	mergeSort(right, compare)
	for i := range all {
		if len(left) == 0 {
			return // the rest of right is already in place
		}
		if len(right) == 0 || compare(left[0], right[0]) <= 0 {
			all[i], left = left[0], left[1:]
		} else {
			all[i], right = right[0], right[1:]
		}
	}
}
