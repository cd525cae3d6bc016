package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// turnHome is a home with a running sandbox x that has a project.
func turnHome(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is missing: apt-get install git")
	}
	home := sandboxHome(t)
	project := filepath.Join(home, "project")
	if err := os.Mkdir(project, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(project, "README"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	mustMSB(t, home, "up", "x", "--workspace", project, "--no-mount", "--no-shell")
	return home
}

func exits(t *testing.T, p *person, want int) {
	t.Helper()
	if code := p.leaves(); code != want {
		t.Errorf("exit code %d, want %d; the screen says:\n%s", code, want, p.screen())
	}
}

const choice = "always in this workspace > "

func TestTurnAsksAtTheTerminal(t *testing.T) {
	home := turnHome(t)

	// Enter is a no, a reason reaches the model.
	p := sit(t, home, nil, "turn", "x", "--prompt", "look around")
	p.sees("call the tool search_issues of the MCP server demo")
	p.sees(choice)
	p.types("\r")
	p.sees("denied")
	p.sees("run a command in /work/repo as dev")
	p.sees("| uname -sr && ls -l")
	p.sees(choice)
	p.types("r\r")
	p.sees("reason, for the model > ")
	p.types("not today\r")
	p.sees("denied by the user: not today")
	exits(t, p, exitDenied)

	// What is typed before the question does not answer it.
	p = sit(t, home, nil, "turn", "x", "--prompt", "look around")
	p.types("y\ry\ry\r")
	p.sees(choice)
	p.types("y\r")
	p.sees("allowed")
	p.sees(choice)
	p.types("w\r")
	p.sees("exit=0")
	exits(t, p, exitOK)
	if rules := mustMSB(t, home, "rules", "ls", "x"); !strings.Contains(rules, "in every session of this workspace") {
		t.Errorf("rules:\n%s", rules)
	}

	// A rule answers the second time; another terminal can answer too, and Ctrl-C cancels.
	p = sit(t, home, nil, "turn", "x", "--prompt", "look around")
	p.sees(choice)
	other := sit(t, home, nil, "approvals", "x")
	other.sees(choice)
	other.types("y\r")
	p.sees("it is no longer waiting")
	p.sees("allowed")
	p.sees("exit=0")
	exits(t, p, exitOK)
	other.types("\x03")
	exits(t, other, exitOK)

	p = sit(t, home, nil, "turn", "x", "--prompt", "look around")
	p.sees(choice)
	session, _, _ := strings.Cut(mustMSB(t, home, "session", "ls", "x", "-q"), "\n")
	for _, args := range [][]string{{"turn", "x", "--prompt", "too", "--session", session}, {"session", "rm", "x", session}} {
		if out, err := msb(t, home, args...); err == nil || !strings.Contains(out, "turn already in progress") {
			t.Errorf("%v in a turn: %v, %s", args, err, out)
		}
	}
	p.types("\x03")
	exits(t, p, exitInterrupted)
	if list := mustMSB(t, home, "approvals", "x", "--list"); list != "" {
		t.Errorf("waiting: %s", list)
	}

	// A patch is shown in a pager.
	p = sit(t, home, []string{"PAGER=sed s/^/paged:/"}, "diff", "x")
	p.sees("paged:")
	p.sees("MSB-DEMO.md")
	exits(t, p, exitOK)

	// The result goes home after a yes.
	p = sit(t, home, nil, "patch", "apply", "x")
	p.sees("MSB-DEMO.md")
	p.sees("Apply it? [y/N] ")
	p.types("\r")
	p.sees("nothing was changed")
	exits(t, p, exitOK)
	p = sit(t, home, nil, "patch", "apply", "x")
	p.sees("Apply it? [y/N] ")
	p.types("y\r")
	exits(t, p, exitOK)
	if _, err := os.Stat(filepath.Join(home, "project", "MSB-DEMO.md")); err != nil {
		t.Error(err)
	}
}

func TestTurnEndsInTime(t *testing.T) {
	home := turnHome(t)
	idle := sit(t, home, nil, "approvals", "x") // someone who could answer, and does not
	idle.sees("waiting for requests")
	for timeout := time.Second; ; timeout *= 3 {
		cmd := exec.Command(filepath.Join(suite.bin, "msb"), "turn", "x", "--prompt", "look around", "--approve", "ask", "--timeout", timeout.String())
		cmd.Env = testEnv(home)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != exitTimeout {
			t.Fatalf("exit code %d, %v\n%s", code, err, out)
		}
		if strings.Contains(idle.screen(), choice) || timeout > patience/3 { // a busy machine may come to ask too late
			break
		}
	}
	idle.sees("it is no longer waiting")
	idle.types("\x03")
	exits(t, idle, exitOK)
}
