package record

import (
	"errors"
	"fmt"
	"regexp"
)

// section is a generated part of a page, such as <!-- table kernels -->.
var section = regexp.MustCompile(`(?s)(<!-- ((?:table|picture) [\w.-]+) -->\n).*?(<!-- end -->)`)

// Fill replaces the text between the lines <!-- KIND NAME --> and <!-- end --> of a page with contents["KIND NAME"]. The page must have each of these
// sections once, and no others.
func Fill(path, page string, contents map[string]string) (string, error) {
	var err error
	filled := map[string]bool{}
	page = section.ReplaceAllStringFunc(page, func(part string) string {
		m := section.FindStringSubmatch(part)
		text, known := contents[m[2]]
		if !known || filled[m[2]] {
			err = errors.Join(err, fmt.Errorf("%s has an unknown or repeated section %s", path, m[2]))
		}
		filled[m[2]] = true
		return m[1] + text + m[3]
	})
	for name := range contents {
		if !filled[name] {
			err = errors.Join(err, fmt.Errorf("%s has no section %s", path, name))
		}
	}
	return page, err
}
