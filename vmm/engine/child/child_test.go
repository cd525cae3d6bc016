package child

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestStates(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		code   int
		sig    syscall.Signal
		stderr string
	}{
		"fine":   {"exit 0", 0, 0, ""},
		"failed": {"echo one >&2; printf 'two\\033[31m\\n' >&2; exit 3", 3, 0, "one; two[31m"},
		"signal": {"kill -9 $$", -1, syscall.SIGKILL, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Start(exec.Command("/bin/sh", "-c", c.script))
			if err != nil {
				t.Fatal(err)
			}
			<-p.Done()
			code, sig, _ := p.State()
			if code != c.code || sig != c.sig || p.Stderr() != c.stderr {
				t.Errorf("code %d, signal %v, stderr %q; want %d, %v, %q", code, sig, p.Stderr(), c.code, c.sig, c.stderr)
			}
			if err := p.Kill(); err != nil {
				t.Errorf("kill what has ended: %v", err)
			}
		})
	}
}

func TestMissingProgram(t *testing.T) {
	if _, err := Start(exec.Command("/nowhere/program")); err == nil || !strings.Contains(err.Error(), "/nowhere/program") {
		t.Errorf("got %v", err)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	tail := NewTail(8)
	for _, s := range []string{"abc", "defgh", "ij", strings.Repeat("k", 20), "\xff\n", "z"} {
		tail.Write([]byte(s))
	}
	if got := tail.Line(); got != "kkkkk; z" {
		t.Errorf("got %q", got)
	}
}
