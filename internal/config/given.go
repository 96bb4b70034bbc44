package config

import "strings"

// Given is a setting that somebody gave.
type Given struct{ Path, Value, Origin string }

// Given lists the settings that somebody gave, with the values in force, in the order of every output.
func (l *Loaded) Given() []Given {
	var all []Given
	for _, row := range table {
		if origin, given := l.origins[row.path]; given {
			all = append(all, Given{row.path, strings.Join(row.value(&l.Settings).words(), ","), origin})
		}
	}
	return all
}
