package iptables

import "strings"

// quote writes a word so that restore reads it back as one.
func quote(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\n\"'\\") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}
