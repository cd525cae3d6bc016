package warden_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

// enemy builds the enemy where the owner of commands can run it.
func enemy(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "enemy")
	cmd := exec.Command("go", "build", "-o", path, "msb/guest/turn/turntest/enemy")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return path
}

// children lists the children of a process.
func children(t *testing.T, pid int) []int {
	t.Helper()
	var list []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(pid) {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			list = append(list, n)
		}
	}
	return list
}

// agentOf finds the agent among the warden's children: the one with a user of its own.
func agentOf(t *testing.T, warden int) int {
	t.Helper()
	for _, pid := range children(t, warden) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.HasPrefix(string(b), "msb-turn-agent") {
			return pid
		}
	}
	t.Fatal("there is no agent")
	return 0
}

// An allowed command does all it can against the agent, the warden and its keeper, and nothing works. The agent goes on.
func TestAllowedCommandCannotBeTheAgent(t *testing.T) {
	var command, result string
	a := start(t, turntest.Script{
		Approve: allow,
		Model: func(n int, r turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
			if n == 0 {
				return turntest.Use(turntest.Command(command))
			}
			result = turntest.Last(r)
			return turntest.Say("done")
		},
	})
	a.Greeted()
	warden := a.cmd.Process.Pid
	agent := agentOf(t, warden)
	path := enemy(t, filepath.Dir(a.repo))
	command = fmt.Sprintf("%s %d %d $PPID", path, warden, agent)
	if _, err := a.Start(turnrpc.UserTurn{Text: "go"}).Wait(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(result, "attack over") {
		t.Fatalf("the attack did not run: %s", result)
	}
	if strings.Contains(result, "WORKED") {
		t.Errorf("the command got through:\n%s", result)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", agent))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t990\t990\t990\t990", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the agent's status has no %q:\n%s", want, status)
		}
	}
	// The warden has nothing of the connection any more.
	for fd := range 64 {
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", warden, fd))
		if err == nil && fd != 2 && strings.HasPrefix(name, "pipe:") {
			t.Errorf("the warden still has descriptor %d, %s", fd, name)
		}
	}
}

// The same enemy in the agent's own user: the agent cannot be traced by processes of its user, which there are none of.
func TestAgentIsUndumpable(t *testing.T) {
	a := start(t, turntest.Script{})
	a.Greeted()
	agent := agentOf(t, a.cmd.Process.Pid)
	for _, name := range []string{"mem", "environ", "maps"} {
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d/%s", agent, name), &st); err != nil || st.Uid != 0 {
			t.Errorf("/proc/AGENT/%s belongs to %d, %v: an undumpable process's belongs to root", name, st.Uid, err)
		}
	}
}
