package inspect

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// TopScreen is the interactive state of top in a terminal. The zero value shows all entries, sorted by new connections.
type TopScreen struct {
	// Filter selects entries whose namespace, name, address or pod contains it.
	Filter    string
	Endpoints bool
	Paused    bool

	column, top    int // column is an index into topColumns, top is the first visible row
	typing, asking bool
	shown          int // the number of visible rows
	// widths only grow, so that the columns do not move.
	widths []int
}

// SortBy sorts by the column with this title. Without a title, it does nothing.
func (s *TopScreen) SortBy(title string) (err error) {
	if title != "" {
		s.column, err = topColumn(title)
	}
	return err
}

// Key handles a key and reports whether the user wants to quit.
func (s *TopScreen) Key(key rune) (quit bool) {
	switch {
	case s.typing:
		s.typed(key)
	case key == 'q', key == controlC:
		return true
	case key == '/':
		s.typing, s.Filter, s.top = true, "", 0
	case key == 'e':
		s.Endpoints = !s.Endpoints
	case key == ' ':
		s.Paused = !s.Paused
	case key == 'h', key == '?':
		s.asking = !s.asking
	case key == Up, key == 'k':
		s.top--
	case key == Down, key == 'j':
		s.top++
	case key == PageUp:
		s.top -= max(s.shown, 1)
	case key == PageDown:
		s.top += max(s.shown, 1)
	default:
		for i, c := range topColumns {
			if c.key == key {
				s.column, s.top = i, 0
			}
		}
	}
	s.top = max(s.top, 0)
	return false
}

// Keys without a character.
const (
	Up rune = -1 - iota
	Down
	PageUp
	PageDown
)

// keySequences are the escape sequences that terminals send for the arrow and page keys.
var keySequences = map[string]rune{"\x1b[A": Up, "\x1b[B": Down, "\x1b[5~": PageUp, "\x1b[6~": PageDown,
	"\x1bOA": Up, "\x1bOB": Down}

// ParseKeys returns the keys in the text that a terminal sends.
func ParseKeys(text string) (keys []rune) {
	for text != "" {
		sequence := keySequence.FindString(text)
		key, known := keySequences[sequence]
		switch {
		case known:
			keys, text = append(keys, key), text[len(sequence):]
		case sequence != "": // a key that top does not use
			text = text[len(sequence):]
		default:
			r, size := utf8.DecodeRuneInString(text)
			keys, text = append(keys, r), text[size:]
		}
	}
	return keys
}

var keySequence = regexp.MustCompile(`^\x1b(\[[0-9;]*[A-Za-z~]|O[A-Za-z])`)

const (
	controlC  = 3
	escape    = 27
	backspace = 127
)

func (s *TopScreen) typed(key rune) {
	switch {
	case key == '\r', key == '\n', key == controlC:
		s.typing = false
	case key == escape:
		s.typing, s.Filter = false, ""
	case key == backspace, key == '\b':
		if letters := []rune(s.Filter); len(letters) > 0 {
			s.Filter = string(letters[:len(letters)-1])
		}
	case unicode.IsPrint(key):
		s.Filter += string(key)
	}
}

// Lines returns the screen: at most height lines of at most width characters.
func (s *TopScreen) Lines(list TopList, title string, width, height int) []string {
	items := slices.DeleteFunc(slices.Clone(list.Items), func(e TopEntry) bool { return !s.selects(e) })
	slices.SortStableFunc(items, topColumns[s.column].compare)
	sums, counted := Traffic{}, map[string]bool{} // frontends may share a virtual server
	for _, e := range items {
		if counted[e.Server] {
			continue
		}
		counted[e.Server] = true
		sums.Add(e.Traffic)
	}
	lines := []string{
		fmt.Sprintf("%s   %d of %d frontends   %s connections/s   %s packets/s   %s bytes in/s   %s bytes out/s", title, len(items), len(list.Items),
			short(sums.Connections), short(sums.Packets), short(sums.BytesIn), short(sums.BytesOut)),
		s.status(list.Unknown),
	}
	if s.asking {
		lines = append(lines, topHelp...)
	} else {
		lines = append(lines, s.table(items, height-len(lines))...)
	}
	for i := range lines {
		lines[i] = clip(lines[i], width)
	}
	return lines[:min(len(lines), max(height, 0))]
}

func (s *TopScreen) table(items []TopEntry, height int) []string {
	rows := func(e TopEntry) int {
		if s.Endpoints {
			return 1 + len(e.Endpoints)
		}
		return 1
	}
	all := 0
	for _, e := range items {
		all += rows(e)
	}
	s.shown = max(height-1, 0)
	s.top = min(s.top, max(all-s.shown, 0))
	above := 0
	for above < all && above+rows(items[0]) <= s.top {
		above, items = above+rows(items[0]), items[1:]
	}
	var text strings.Builder
	picture := topTable(TopList{Items: items[:min(len(items), s.shown+1)]}, s.Endpoints) // the first entry may begin above the visible rows
	_ = picture.writeColumns(&text, &s.widths)                                           // a Builder does not fail
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	titles, lines := lines[0], lines[1:]
	first := s.top - above
	return append([]string{titles}, lines[first:min(first+s.shown, len(lines))]...)
}

func (s *TopScreen) selects(e TopEntry) bool {
	if s.Filter == "" {
		return true
	}
	in := func(text string) bool { return strings.Contains(text, s.Filter) }
	return in(e.Namespace+"/"+e.Name) || in(e.Address.String()) ||
		slices.ContainsFunc(e.Endpoints, func(o TopEndpoint) bool { return in(o.Pod) || in(o.Address.String()) })
}

func (s *TopScreen) status(unknown []string) string {
	text := "sorted by " + topColumns[s.column].title
	switch {
	case s.typing:
		return "filter: " + s.Filter + "_   (Enter keeps it, Escape clears it)"
	case s.Filter != "":
		text += ", filter: " + s.Filter
	}
	if s.Paused {
		text += ", paused"
	}
	text += "   (h for help, q to quit)"
	if len(unknown) > 0 {
		text += "   unknown: " + strings.Join(unknown, "; ")
	}
	return text
}

var topHelp = []string{
	"", "c p b a i d n   sort by new connections, packets, bytes, active or inactive connections, draining endpoints, or name",
	"e               show or hide endpoints: SHARE is an endpoint's share of the new connections, and its share of the weights",
	"/               filter by namespace, name, address or pod", "Space           pause", "arrows, j, k    scroll", "h               close this help",
	"q               quit",
}

func clip(line string, width int) string {
	letters := []rune(finding.Printable(line))
	return string(letters[:min(len(letters), max(width, 0))])
}
