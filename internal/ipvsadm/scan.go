package ipvsadm

import "strings"

// scanner splits a command line as the popt library does. It accepts long options ("--name value" and "--name=value"),
// bundles of short options ("-nt value", "-ntvalue" and "-nt=value"), and other arguments in any position.
type scanner struct {
	args   []string // the remaining arguments
	arg    string   // the argument of the current word, for messages
	bundle string   // the rest of a bundle of short options
	others []string // arguments that are not options
}

// next returns the next word and its value, or false at the end.
func (s *scanner) next() (word, string, bool, *Failure) {
	if s.bundle == "" && !s.advance() {
		return word{}, "", false, nil
	}
	if s.bundle == "" {
		return s.long()
	}
	return s.short()
}

func (s *scanner) advance() bool {
	for len(s.args) > 0 {
		s.arg, s.args = s.args[0], s.args[1:]
		switch {
		case s.arg == "--":
			s.others, s.args = append(s.others, s.args...), nil
		case strings.HasPrefix(s.arg, "--"):
			return true
		case len(s.arg) > 1 && s.arg[0] == '-':
			s.bundle = s.arg[1:]
			return true
		default:
			s.others = append(s.others, s.arg)
		}
	}
	return false
}

func (s *scanner) long() (word, string, bool, *Failure) {
	name, value, given := strings.Cut(s.arg[2:], "=")
	w, ok := findLong(name)
	if !ok {
		return word{}, "", false, s.failure("unknown option")
	}
	return s.withValue(w, value, given)
}

func (s *scanner) short() (word, string, bool, *Failure) {
	w, ok := findShort(s.bundle[0])
	if !ok {
		return word{}, "", false, s.failure("unknown option")
	}
	s.bundle = s.bundle[1:]
	if w.value == noValue {
		return s.withValue(w, "", strings.HasPrefix(s.bundle, "="))
	}
	value := s.bundle
	s.bundle = ""
	return s.withValue(w, strings.TrimPrefix(value, "="), value != "")
}

// withValue reads the value of a word from the next argument if the word has none.
func (s *scanner) withValue(w word, value string, given bool) (word, string, bool, *Failure) {
	switch {
	case w.value == noValue && given:
		return word{}, "", false, s.failure("option does not take an argument")
	case w.value == needsValue && !given && len(s.args) == 0:
		return word{}, "", false, s.failure("missing argument")
	case w.value == needsValue && !given, w.value == mayHaveValue && !given && s.valueFollows():
		value, s.args = s.args[0], s.args[1:]
	}
	return w, value, true, nil
}

func (s *scanner) valueFollows() bool { return len(s.args) > 0 && !strings.HasPrefix(s.args[0], "-") }

func (s *scanner) failure(text string) *Failure { return failed(statusFailure, "%s: %s", s.arg, text) }
