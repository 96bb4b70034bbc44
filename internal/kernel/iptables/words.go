package iptables

import "strings"

// quote quotes a word so that restore reads it back as one word.
func quote(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\n\"'\\") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}
