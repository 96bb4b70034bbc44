package iptables

import "strings"

// quote writes a word so that restore reads it back as one.
func quote(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\n\"'\\") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}

// split takes a line of save apart as restore does: white space separates words, except between double quotes, where a backslash
// takes the next character as it is.
func split(line string) []string {
	var words []string
	var word strings.Builder
	inWord, quoted, escaped := false, false, false
	for _, c := range []byte(line) {
		switch {
		case escaped:
			word.WriteByte(c)
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted, inWord = !quoted, true
		case !quoted && (c == ' ' || c == '\t' || c == '\n'):
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}
