package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func upArgs(t *testing.T, more ...string) []string {
	return append([]string{"up", "demo", "--image", "tiny", "-m", "256M", "--engine", anyEngine(t)}, more...)
}

func TestUpWithoutATerminal(t *testing.T) {
	home := preparedHome(t)
	out := mustMSB(t, home, upArgs(t)...)
	for _, want := range []string{"demo: booted in", "mount    ~/msb/demo  ->  demo:/home/dev", "`msb shell demo`"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "msb", "demo", "note"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := mustMSB(t, home, "exec", "demo", "--", "cat", "note"); got != "hello\n" {
		t.Errorf("the guest has %q", got)
	}
	// Again, and once more after a stop.
	if out := mustMSB(t, home, upArgs(t)...); !strings.Contains(out, "demo: is running") {
		t.Errorf("second time:\n%s", out)
	}
	mustMSB(t, home, "stop", "demo")
	mustMSB(t, home, upArgs(t)...)
	if b, err := os.ReadFile(filepath.Join(home, "msb", "demo", "note")); err != nil || string(b) != "hello\n" {
		t.Errorf("after a restart: %q, %v", b, err)
	}
}

func TestUpOpensAShell(t *testing.T) {
	home := preparedHome(t)
	p := sit(t, home, nil, upArgs(t, "--shell")...)
	p.sees("booted in")
	p.sees("Ctrl-] leaves the shell")
	p.sees("$ ")
	p.types("false; exit\r")
	if code := p.leaves(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p = sit(t, home, nil, upArgs(t, "--shell")...)
	p.sees("$ ")
	p.types("\x1d")
	if code := p.leaves(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Ctrl-C at any moment leaves nothing half: the next up works.
func TestUpInterrupted(t *testing.T) {
	for _, moment := range []string{"", "starting", "booting", "booted", "~/msb/demo"} {
		t.Run(strings.TrimSpace("at "+moment), func(t *testing.T) {
			home := preparedHome(t)
			p := sit(t, home, nil, upArgs(t, "--no-shell")...)
			p.sees(moment)
			p.types("\x03")
			code := p.leaves()
			if code != exitInterrupted && code != 0 && code != -1 { // -1: before it listened
				t.Errorf("exit code %d: %q", code, p.screen())
			}
			list := mustMSB(t, home, "ls", "--json")
			if strings.Contains(list, "starting") || strings.Contains(list, "broken") || strings.Contains(list, "crashed") {
				t.Errorf("half a sandbox:\n%s", list)
			}
			mustMSB(t, home, upArgs(t)...)
			mustMSB(t, home, "exec", "demo", "--", "true")
			if _, err := os.ReadDir(filepath.Join(home, "msb", "demo")); err != nil {
				t.Error(err)
			}
		})
	}
}

// A clone of msb in ~/msb is no place for files that a guest writes: git and `go test ./...` would find them there.
func TestUpMountsOutsideOfAWorkTree(t *testing.T) {
	for _, project := range []string{".git/HEAD", ".git", "go.mod"} {
		t.Run(project, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			o := upOptions{machine: machine{name: "demo"}}
			if dir, err := upDir(&o); err != nil || dir != filepath.Join(home, "msb", "demo") {
				t.Fatalf("%q, %v", dir, err)
			}
			file := filepath.Join(home, "msb", project)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if dir, err := upDir(&o); err != nil || dir != filepath.Join(home, "msb-demo") {
				t.Errorf("%q, %v", dir, err)
			}
			o.dir = filepath.Join(home, "msb", "demo")
			if dir, err := upDir(&o); err != nil || dir != o.dir {
				t.Errorf("asked for: %q, %v", dir, err)
			}
		})
	}
}
