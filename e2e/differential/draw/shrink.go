package draw

// Shrink removes Services from a set while the set still fails, and returns the rest. It first tries only the
// suspects, which usually suffice. Each try is a slow comparison, so tries are limited.
func Shrink(set Set, suspects map[string]bool, tries int, fails func(Set) bool) Set {
	if few := set.Only(suspects); tries > 0 && len(few.Services) > 0 && len(few.Services) < len(set.Services) {
		tries--
		if fails(few) {
			set = few
		}
	}
	for part := (len(set.Services) + 1) / 2; part > 0 && len(set.Services) > 1; part /= 2 {
		for start := 0; start < len(set.Services); {
			if tries--; tries < 0 {
				return set
			}
			if fewer := without(set, start, start+part); len(fewer.Services) > 0 && fails(fewer) {
				set = fewer
			} else {
				start += part
			}
		}
	}
	return set
}

func without(set Set, start, end int) Set {
	end = min(end, len(set.Services))
	fewer := Set{Nodes: set.Nodes, NodePorts: set.NodePorts}
	fewer.Services = append(fewer.Services, set.Services[:start]...)
	fewer.Services = append(fewer.Services, set.Services[end:]...)
	return fewer
}
