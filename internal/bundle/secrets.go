package bundle

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

const redacted = "REDACTED"

// Secrets finds known secret values, and anything that looks like a credential.
type Secrets struct{ known []string }

// shortest is the minimum length of a known secret. Shorter values also occur in ordinary words.
const shortest = 6

// NewSecrets returns Secrets that match these values, both plain and JSON-encoded.
func NewSecrets(values []string) *Secrets {
	s := &Secrets{}
	for _, value := range values {
		if len(value) < shortest {
			continue
		}
		quoted, _ := json.Marshal(value) // marshaling a string never fails
		s.known = append(s.known, value, strings.Trim(string(quoted), `"`))
	}
	slices.SortFunc(s.known, func(a, b string) int { return len(b) - len(a) }) // the longest first, because one value may contain another
	s.known = slices.Compact(s.known)
	return s
}

// shape matches a credential. Redact keeps the first group, and replaces the rest with a placeholder and the text in
// after.
type shape struct {
	*regexp.Regexp
	after string
	// hints are lowercase strings. The regular expression matches only text that contains one of them. Searching for
	// them first is faster.
	hints []string
}

var shapes = []shape{
	{regexp.MustCompile(`()-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|$)`), "", []string{"private key-----"}},
	{regexp.MustCompile(`()\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?`), "", []string{"eyj"}}, // a JSON web token
	{
		regexp.MustCompile(`(?i)(\bauthorization\\*["']?\s*[:=]\s*\\*["']?(?:(?:bearer|basic|negotiate|digest)\s+)?)[^\s"'\\]+`),
		"", []string{"authorization"},
	},
	{regexp.MustCompile(`(?i)(\bbearer\s+)[\w+/=.~-]{8,}`), "", []string{"bearer"}},
	{regexp.MustCompile(`(?i)((?:` + strings.Join(words, "|") + `)[\w.-]*\\*["']?\s*[:=]\s*\\*["']?)[^\s"'\\,;&]{6,}`), "", words},
	{regexp.MustCompile(`(://[^/\s:@]*:)[^@\s/]+@`), "@", []string{"://"}},
}

var words = []string{"token", "passwd", "password", "secret", "apikey", "api-key", "api_key", "key-data", "private-key", "private_key", "privatekey", "credential"}

// Redact replaces the secrets in a text, and counts them.
func (s *Secrets) Redact(text string) (clean string, count int) {
	for _, value := range s.known {
		count += strings.Count(text, value)
		text = strings.ReplaceAll(text, value, redacted)
	}
	lower := strings.ToLower(text)
	for _, shape := range shapes {
		if !slices.ContainsFunc(shape.hints, func(hint string) bool { return strings.Contains(lower, hint) }) {
			continue
		}
		text = shape.ReplaceAllStringFunc(text, func(found string) string {
			clean := shape.FindStringSubmatch(found)[1] + redacted + shape.after
			if clean != found {
				count++
			}
			return clean
		})
	}
	return text, count
}

var credentials = regexp.MustCompile(`(?im)^[\s-]*["']?[\w.-]*(?:token|passw(?:or)?d|secret|key|credential|auth)[\w.-]*["']?\s*[:=]\s*["']?([^\s"']+)`)

// Credentials returns the values of a kubeconfig or an environment whose names contain a word such as token.
func Credentials(text string) (values []string) {
	for _, m := range credentials.FindAllStringSubmatch(text, -1) {
		if !strings.HasPrefix(m[1], "/") { // a path is not a secret
			values = append(values, m[1])
		}
	}
	return values
}
