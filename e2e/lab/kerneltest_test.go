package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestFindTests(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"kernel_test.go": "package p\nimport need \"example/labtest\"\nfunc TestMain(m *testing.M) {}\nfunc TestA(t *testing.T) {}\nfunc FuzzB(f *testing.F) {}\nfunc setup() {}\n",
		"world_test.go":  "package p\nimport \"example/cluster\"\nfunc TestC(t *testing.T) {}\nfunc (w world) TestD() {}\n",
		"plain_test.go":  "package p\nimport \"testing\"\nfunc TestE(t *testing.T) {}\nfunc ExampleF() {}\nfunc BenchmarkG(b *testing.B) {}\n",
	}
	var names []string
	for name, text := range files {
		names = append(names, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := findTests(dir, names, []string{"example/labtest", "example/cluster"})
	want := testFunctions{kernel: []string{"FuzzB", "TestA", "TestC"}, host: []string{"ExampleF", "TestE"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v %v\nwant %+v", got, err, want)
	}
}

func TestUnitsShareAPackage(t *testing.T) {
	unit := func() testUnit {
		return testUnit{Skip: skipPattern("TestPlain"), Expected: []string{"TestA", "TestAB", "TestC"}}
	}
	part, rest := unit(), unit()
	part.only("TestA|TestC")
	rest.except([]string{"TestA|TestC"})
	if part.Run != "^(TestA|TestC)$" || !reflect.DeepEqual(part.Expected, []string{"TestA", "TestC"}) {
		t.Errorf("the part is %+v", part)
	}
	if rest.Skip != "^(TestPlain)$|^(TestA|TestC)$" || !reflect.DeepEqual(rest.Expected, []string{"TestAB"}) {
		t.Errorf("the rest is %+v", rest)
	}
}

// sampleLog is the output of a test binary. @ stands for the frame mark.
const sampleLog = `@=== RUN   TestA
@=== ATTR  TestA figure 3 kills of 5
@=== ATTR  TestA other 1
secret of a test that passed
--- FAIL: TestFake (0.00s)
unfinished@--- PASS: TestA (0.01s)
@=== NAME  
@=== RUN   TestB
@=== RUN   TestB/one
    b_test.go:3: detail
@--- FAIL: TestB/one (0.00s)
@=== NAME  TestB
@=== RUN   TestB/two
@--- SKIP: TestB/two (0.00s)
@=== NAME  TestB
@--- FAIL: TestB (0.02s)
@=== NAME  
@=== RUN   TestC
panic: oh
`

func logOf(text string, verbose bool) (*testLog, string) {
	var out bytes.Buffer
	log := newTestLog(&out, verbose)
	for _, b := range []byte(strings.ReplaceAll(text, "@", "\x16")) { // byte by byte
		_, _ = log.Write([]byte{b})
	}
	log.finish(true)
	return log, out.String()
}

func TestTestLog(t *testing.T) {
	log, out := logOf(sampleLog, false)
	want := []testResult{{"TestA", "PASS", []string{"3 kills of 5"}}, {"TestB/one", "FAIL", nil}, {"TestB/two", "SKIP", nil}, {"TestB", "FAIL", nil}}
	if !reflect.DeepEqual(log.results, want) {
		t.Errorf("results %v", log.results)
	}
	if strings.Contains(out, "secret") || !strings.Contains(out, "--- FAIL: TestB/one (0.00s)\n    b_test.go:3: detail\n") ||
		!strings.Contains(out, "panic: oh") {
		t.Errorf("output:\n%s", out)
	}
	if _, out := logOf(sampleLog, true); !strings.Contains(out, "secret") || strings.Contains(out, "\x16") {
		t.Errorf("verbose output:\n%q", out)
	}
}

func TestCountTests(t *testing.T) {
	for _, test := range []struct {
		name               string
		log                string
		recorded, expected []string
		want               testCount
		ok                 bool
	}{
		{"all sorts", sampleLog, []string{"TestA", "TestB"}, []string{"TestA", "TestB"},
			testCount{Ran: 2, Failed: 2, Skipped: 1}, false},
		{"fine", "@=== RUN   TestA\n@--- PASS: TestA (0.0s)\n@=== RUN   TestP\n@--- PASS: TestP (0.0s)\n",
			[]string{"TestA"}, []string{"TestA"}, testCount{Ran: 1}, true},
		{"requested in the subtest", "@=== RUN   TestA\n@=== RUN   TestA/x\n@--- PASS: TestA/x (0.0s)\n@--- PASS: TestA (0.0s)\n",
			[]string{"TestA/x"}, []string{"TestA"}, testCount{Ran: 1}, true},
		{"returned before the request", "@=== RUN   TestA\n@--- PASS: TestA (0.0s)\n", nil, []string{"TestA"},
			testCount{Missing: []string{"TestA"}}, false},
		{"skipped before the request", "@=== RUN   TestA\n@--- SKIP: TestA (0.0s)\n", nil, []string{"TestA"},
			testCount{Skipped: 1, Missing: []string{"TestA"}}, false},
		{"nothing ran", "", nil, nil, testCount{}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			log, _ := logOf(test.log, false)
			got := countTests(log, test.recorded, test.expected)
			if !reflect.DeepEqual(got, test.want) || got.ok() != test.ok {
				t.Errorf("got %+v %v, want %+v", got, got.ok(), test.want)
			}
		})
	}
}
