package view

import (
	"fmt"
	"testing"
	"time"
)

func TestHistoryFilter(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	later := noon.Add(time.Hour)
	web, others := Some[string]{Count: 1, Items: []string{"shop/web"}}, Some[string]{Count: 99, Items: []string{"shop/cart"}}
	entries := []*PastSync{
		{ID: 1, Time: noon, Services: others},
		{ID: 2, Time: noon, Last: &later, Services: web, Error: "failed"},
		{ID: 3, Time: noon, Drift: Some[string]{Count: 1}},
		{ID: 4, Time: later, Services: web},
	}
	for name, c := range map[string]struct {
		filter HistoryFilter
		want   string
	}{
		"everything":                            {HistoryFilter{}, "[1 2 3 4]"},
		"a Service, even if it may be unlisted": {HistoryFilter{Service: "shop/web"}, "[1 2 4]"},
		"since, and the last repetition":        {HistoryFilter{Since: later}, "[2 4]"},
		"failures":                              {HistoryFilter{Failed: true}, "[2]"},
		"repairs":                               {HistoryFilter{Repairs: true}, "[3]"},
		"failures and repairs":                  {HistoryFilter{Failed: true, Repairs: true}, "[2 3]"},
		"the latest of a Service":               {HistoryFilter{Service: "shop/web", Limit: 2}, "[2 4]"},
		"a limit beyond the end":                {HistoryFilter{Limit: 9}, "[1 2 3 4]"},
	} {
		ids := []int{}
		for _, e := range c.filter.Select(entries) {
			ids = append(ids, e.ID)
		}
		if got := fmt.Sprint(ids); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestNews: after the first list, --watch shows new entries and entries that were repeated.
func TestNews(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	later := noon.Add(time.Hour)
	before := []*PastSync{{ID: 1, Time: noon}, {ID: 2, Time: noon}}
	h := History{Entries: []*PastSync{{ID: 1, Time: noon}, {ID: 2, Time: noon, Last: &later}, {ID: 3, Time: later}}}
	if got := h.News(before); len(got) != 2 || got[0].ID != 2 || got[1].ID != 3 {
		t.Errorf("%+v", got)
	}
	if got := h.News(nil); len(got) != 3 {
		t.Errorf("without an earlier list: %+v", got)
	}
}
