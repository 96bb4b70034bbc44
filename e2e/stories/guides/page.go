package guides

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Page is a Markdown page.
type Page struct {
	Name   string // relative to the checkout, such as docs/install.md
	Lines  []string
	Blocks []Block
}

// Block is a fenced block, with the instructions from the comments before it.
type Block struct {
	Page          string
	Line          int    // number of its first line, counted from 1
	Kind          string // the word after the fence
	Text          []string
	Before, After []string
	Exits         int
	NotRun        string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// Pages reads README.md and the pages in docs, except those that are generated or record past decisions.
func Pages(root string) ([]Page, error) {
	var files []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, slices.DeleteFunc(found, func(file string) bool {
			return slices.Contains([]string{"cli", "decisions"}, filepath.Base(filepath.Dir(file)))
		})...)
	}
	var pages []Page
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		page, err := parse(name, string(text))
		if err != nil {
			return nil, err
		}
		pages = append(pages, page)
	}
	return pages, nil
}

var comment = regexp.MustCompile(`^<!-- (before|after|exits|not run): (.*) -->$`)

func parse(name, text string) (Page, error) {
	page := Page{Name: name, Lines: strings.Split(text, "\n")}
	next := Block{Page: name}
	for i := 0; i < len(page.Lines); i++ {
		line := strings.TrimSpace(page.Lines[i])
		indent := len(page.Lines[i]) - len(strings.TrimLeft(page.Lines[i], " "))
		if m := comment.FindStringSubmatch(line); m != nil {
			if err := next.note(m[1], m[2]); err != nil {
				return page, fmt.Errorf("%s:%d: %w", name, i+1, err)
			}
			continue
		}
		fence := strings.HasPrefix(line, "```")
		if !fence {
			if line != "" && next.noted() {
				return page, fmt.Errorf("%s:%d: a comment that controls a block must be directly before it", name, i+1)
			}
			continue
		}
		end := slices.IndexFunc(page.Lines[i+1:], func(l string) bool { return strings.TrimSpace(l) == "```" })
		if end < 0 {
			return page, fmt.Errorf("%s:%d: the block is not closed", name, i+1)
		}
		next.Line, next.Kind = i+1, strings.TrimPrefix(line, "```")
		for _, l := range page.Lines[i+1 : i+1+end] {
			next.Text = append(next.Text, l[min(indent, len(l)-len(strings.TrimLeft(l, " "))):])
		}
		page.Blocks = append(page.Blocks, next)
		next, i = Block{Page: name}, i+1+end
	}
	return page, nil
}

func (b *Block) note(word, value string) (err error) {
	switch word {
	case "before":
		b.Before = append(b.Before, value)
	case "after":
		b.After = append(b.After, value)
	case "exits":
		b.Exits, err = strconv.Atoi(value)
	case "not run":
		b.NotRun = value
	}
	return err
}

func (b *Block) noted() bool {
	return len(b.Before)+len(b.After)+b.Exits+len(b.NotRun) > 0
}

// Command is a command in a console block, with the output that the page shows.
type Command struct {
	Text  string
	Shown []string
}

var hereDocument = regexp.MustCompile(`<<'?([A-Z]+)'?`)

// Commands returns the commands of a console block.
func (b Block) Commands() ([]Command, error) {
	var all []Command
	for i := 0; i < len(b.Text); i++ {
		text, isCommand := strings.CutPrefix(b.Text[i], "$ ")
		if !isCommand {
			if len(all) == 0 {
				return nil, fmt.Errorf("%s: a console block must start with a command: %q", b, b.Text[i])
			}
			last := &all[len(all)-1]
			last.Shown = append(last.Shown, b.Text[i])
			continue
		}
		last := func() string { return text[strings.LastIndex(text, "\n")+1:] }
		for strings.HasSuffix(last(), `\`) && i+1 < len(b.Text) {
			i++
			text += "\n" + b.Text[i]
		}
		if m := hereDocument.FindStringSubmatch(text); m != nil {
			for last() != m[1] && i+1 < len(b.Text) {
				i++
				text += "\n" + b.Text[i]
			}
		}
		all = append(all, Command{Text: text})
	}
	return all, nil
}
