package kerneltest

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// words contains the words of a command that have not been read yet. Reading past the end returns an empty word.
type words struct {
	list      []string
	comment   string
	commented bool
}

// Double quotes may enclose any text.
func split(text string) (*words, error) {
	w := &words{}
	for {
		text = strings.TrimLeft(text, " \t")
		switch {
		case text == "":
			return w, nil
		case text[0] == '#':
			w.comment, w.commented = strings.TrimSpace(text[1:]), true
			return w, nil
		case text[0] == '"':
			quoted, err := strconv.QuotedPrefix(text)
			if err != nil {
				return nil, fmt.Errorf("quotes: %s: %w", text, err)
			}
			word, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, fmt.Errorf("quotes: %s: %w", quoted, err)
			}
			w.list, text = append(w.list, word), text[len(quoted):]
		default:
			end := strings.IndexAny(text, " \t")
			if end < 0 {
				end = len(text)
			}
			w.list, text = append(w.list, text[:end]), text[end:]
		}
	}
}

func (w *words) more() bool { return len(w.list) > 0 }

func (w *words) next() string {
	if !w.more() {
		return ""
	}
	word := w.list[0]
	w.list = w.list[1:]
	return word
}

func (w *words) rest() []string {
	list := w.list
	w.list = nil
	return list
}

func (w *words) until(last string) []string {
	var list []string
	for w.more() {
		word := w.next()
		if word == last {
			break
		}
		list = append(list, word)
	}
	return list
}

func (w *words) expect(want ...string) error {
	for _, word := range want {
		if have := w.next(); have != word {
			return fmt.Errorf("%q: must be %q", have, word)
		}
	}
	return nil
}

func (w *words) end() error {
	if w.more() {
		return fmt.Errorf("unexpected %q", w.next())
	}
	return nil
}

func (w *words) number() (uint32, error) {
	n, err := strconv.ParseUint(w.next(), 10, 32)
	return uint32(n), err
}

func (w *words) server() (kernel.ServerKey, error) {
	protocols := map[string]inet.Protocol{"-t": inet.TCP, "-u": inet.UDP, "--sctp-service": inet.SCTP}
	option := w.next()
	protocol, ok := protocols[option]
	if !ok {
		return kernel.ServerKey{}, fmt.Errorf("%q: must be -t, -u or --sctp-service", option)
	}
	addr, err := netip.ParseAddrPort(w.next())
	return kernel.ServerKey{Addr: addr, Protocol: protocol}, err
}
