package record

import (
	"fmt"
	"strings"
	"time"
)

// The maximum age of a part at a release.
const (
	maxCommits = 200
	maxDays    = 30
)

// Unknown is the number of commits if they cannot be counted, because the clone lacks history or the commit.
const Unknown = -1

// Age is the age of a part's newest run.
type Age struct {
	Part    Part
	Line    *Line // nil if it has never finished
	Commits int   // after the run, or Unknown
}

// Ages returns the age of each part. commits counts the commits after a given commit, or returns Unknown.
func Ages(lines []Line, commits func(after string) int) []Age {
	ages := make([]Age, len(Parts))
	for i, p := range Parts {
		ages[i].Part = p
		for j := range lines {
			if lines[j].Part == p.Name {
				ages[i].Line = &lines[j] // the last line is the newest
			}
		}
		if l := ages[i].Line; l != nil {
			ages[i].Commits = commits(l.Commit)
		}
	}
	return ages
}

// Unproven explains why the part is not proven. It returns "" if the part is proven.
func (a Age) Unproven(now time.Time) string {
	l := a.Line
	if l == nil {
		return "has not run"
	}
	ended, err := time.Parse(time.RFC3339, l.Date)
	switch {
	case l.State != Passed:
		return fmt.Sprintf("%s: %s", l.State, strings.Join(l.Failing, ", "))
	case a.Commits == Unknown:
		return "unknown age: the clone does not have commit " + l.Commit
	case a.Commits > maxCommits:
		return fmt.Sprintf("%d commits old; at most %d are allowed", a.Commits, maxCommits)
	case err != nil || now.Sub(ended) > maxDays*24*time.Hour:
		return fmt.Sprintf("last ran at %s, more than %d days ago", l.Date, maxDays)
	}
	return ""
}

// String returns a row of the table of ages.
func (a Age) String() string {
	if a.Line == nil {
		return fmt.Sprintf("%-13s has not run", a.Part.Name)
	}
	commits := fmt.Sprintf("%d commits ago", a.Commits)
	if a.Commits == Unknown {
		commits = "unknown age"
	}
	row := fmt.Sprintf("%-13s %-7s %s at %.8s, %.10s: %d passed", a.Part.Name, a.Line.State, commits, a.Line.Commit, a.Line.Date, a.Line.Passed)
	if a.Line.Failed > 0 {
		row += fmt.Sprintf(", %d failed", a.Line.Failed)
	}
	return row
}
