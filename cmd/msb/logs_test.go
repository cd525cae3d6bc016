package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"msb/cmd/msb/terminal"
)

// Pieces of two commands, as they were written.
const execLogSample = `{"t":"2026-05-31T10:00:00Z","s":"stdout","d":"one\ntw","id":1}
{"t":"2026-05-31T10:00:01Z","s":"stderr","d":"oops\n","id":2}
{"t":"2026-05-31T10:00:02Z","s":"stdout","d":"o\nthree\n","id":1}
{"t":"2026-05-31T10:00:03Z","s":"stdout","d":"no end","id":2}
half a li
`

const runtimeLogSample = `time=2026-05-31T10:00:00.000Z level=INFO msg=starting
goroutine 1 [running]:
time=2026-05-31T10:00:09.000Z level=INFO msg=ready
`

func TestLogs(t *testing.T) {
	t.Setenv("MSB_HOME", t.TempDir())
	dir := filepath.Join(os.Getenv("MSB_HOME"), "sandboxes", "x", "logs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"exec.log": execLogSample, "runtime.log": runtimeLogSample, "kernel.log": "a\r\nb\nc"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for args, want := range map[string]string{
		"":                             "one\ntwoops\no\nthree\nno end",
		"--source stderr":              "oops\n",
		"--tail 2":                     "three\nno end",
		"--tail 0":                     "",
		"--tail 100":                   "one\noops\ntwo\nthree\nno end",
		"--grep ^t":                    "two\nthree\n",
		"--grep o$ --tail 1":           "two\n",
		"--grep nothing":               "",
		"--timestamps --tail 3":        "2026-05-31T10:00:00Z two\n2026-05-31T10:00:02Z three\n2026-05-31T10:00:03Z no end\n",
		"--since 2026-05-31T10:00:02Z": "o\nthree\nno end",
		"--until 2026-05-31T10:00:01Z": "one\ntwoops\n",
		"--since 1s":                   "",
		"--since 876000h --grep oops":  "oops\n",
		"--json --grep two":            `{"t":"2026-05-31T10:00:00Z","s":"stdout","d":"two\n","id":1}` + "\n",
		"--source kernel":              "a\nb\nc\n",
		"--source kernel --tail 1":     "c\n",
		"--source runtime --grep go":   "goroutine 1 [running]:\n",
		"--source runtime --since 2026-05-31T10:00:05Z": "time=2026-05-31T10:00:09.000Z level=INFO msg=ready\n",
	} {
		var out, errs bytes.Buffer
		code := execute(append([]string{"logs", "x"}, strings.Fields(args)...), terminal.Test(strings.NewReader(""), &out, &errs))
		if code != 0 || out.String() != want {
			t.Errorf("logs %s: code %d, %q %s; want %q", args, code, out.String(), errs.String(), want)
		}
	}
	for args, want := range map[string]string{
		"--grep (":                     "--grep: error parsing regexp",
		"--since soon":                 "time \"soon\" is not understood",
		"--source kernel --since 1h":   "carry no time",
		"--source kernel --timestamps": "carry no time",
		"--follow --until 2026-05-31":  "use one of them",
		"--source nowhere":             "there are exec",
	} {
		var out, errs bytes.Buffer
		code := execute(append([]string{"logs", "x"}, strings.Fields(args)...), terminal.Test(strings.NewReader(""), &out, &errs))
		if code != exitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("logs %s: code %d, %q; want %q", args, code, errs.String(), want)
		}
	}
}

// Following shows the tail of what is there, then everything that comes.
func TestLogsFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "exec.log")
	if err := os.WriteFile(path, []byte(execLogSample), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o := logsOptions{follow: true, tail: 1, source: "exec"}
	ctx, cancel := context.WithCancel(t.Context())
	out := &untilText{text: "later\n", do: cancel}
	p := newLogPrinter(out, false, o)
	more, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer more.Close()
	out.first = func() {
		_, _ = more.WriteString(`{"t":"2026-05-31T11:00:00Z","s":"stdout","d":"later\n","id":3}` + "\n")
	}
	_ = p.copy(ctx, f)
	if got := out.String(); got != "three\nlater\n" {
		t.Errorf("%q", got)
	}
}

// untilText is an output that does something when it is first written to, and something else when it holds a text.
type untilText struct {
	bytes.Buffer
	text  string
	first func()
	do    func()
}

func (u *untilText) Write(p []byte) (int, error) {
	n, err := u.Buffer.Write(p)
	if u.first != nil {
		u.first()
		u.first = nil
	}
	if strings.Contains(u.String(), u.text) {
		u.do()
	}
	return n, err
}
