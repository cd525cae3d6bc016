package warden_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

// attackName is argv[0] of this test program as the enemy: an allowed command that wants to be the agent.
const attackName = "attack"

// attack tries everything against each process and prints what worked.
func attack(pids []string) {
	runtime.LockOSThread()
	for _, s := range pids {
		pid, err := strconv.Atoi(s)
		if err != nil {
			fmt.Println("bad pid", s)
			continue
		}
		proc := filepath.Join("/proc", s)
		for name, try := range map[string]func() error{
			"ptrace attach": func() error { return unix.PtraceAttach(pid) },
			"ptrace seize":  func() error { return unix.PtraceSeize(pid) },
			"signal 0":      func() error { return unix.Kill(pid, 0) },
			"stop":          func() error { return unix.Kill(pid, unix.SIGSTOP) },
			"kill":          func() error { return unix.Kill(pid, unix.SIGKILL) },
			"mem":           func() error { return open(proc+"/mem", os.O_RDWR) },
			"environ":       func() error { return open(proc+"/environ", os.O_RDONLY) },
			"fd folder":     func() error { _, err := os.ReadDir(proc + "/fd"); return err },
			"fd 3":          func() error { return open(proc+"/fd/3", os.O_RDWR) },
			"fd 4":          func() error { return open(proc+"/fd/4", os.O_WRONLY) },
			"exe":           func() error { return open(proc+"/exe", os.O_RDONLY) },
			"root":          func() error { _, err := os.Stat(proc + "/root/."); return err },
			"auxv":          func() error { return open(proc+"/auxv", os.O_RDONLY) },
			"vm read": func() error {
				var b [8]byte
				_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: 8}},
					[]unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
				return err
			},
			"steal a descriptor": func() error {
				fd, err := unix.PidfdOpen(pid, 0)
				if err != nil {
					return err
				}
				_, err = unix.PidfdGetfd(fd, 4, 0)
				return err
			},
			"limits": func() error {
				return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: 1}, nil)
			},
			"affinity": func() error {
				var set unix.CPUSet
				set.Set(0)
				_, _, errno := unix.Syscall(unix.SYS_SCHED_SETAFFINITY, uintptr(pid), unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
				if errno != 0 {
					return errno
				}
				return nil
			},
			"oom score": func() error { return os.WriteFile(proc+"/oom_score_adj", []byte("1000"), 0) },
		} {
			if err := try(); err == nil {
				fmt.Printf("WORKED: %s on %d\n", name, pid)
			} else if errors.Is(err, unix.ESRCH) {
				fmt.Printf("WORKED: %d is gone\n", pid)
			}
		}
	}
	for _, try := range []func() error{
		func() error { return unix.Setuid(0) },
		func() error { return unix.Setresuid(990, 990, 990) },
		func() error { return unix.Setgroups([]int{0}) },
		func() error { return unix.Setgid(990) },
	} {
		if try() == nil {
			fmt.Println("WORKED: changed the user")
		}
	}
	for fd := 3; fd < 1024; fd++ {
		if name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && !strings.Contains(name, "anon_inode") && !strings.HasPrefix(name, "/sys/fs/cgroup") { // this program's own
			fmt.Printf("WORKED: inherited %d, %s\n", fd, name)
		}
	}
	fmt.Println("attack over")
}

func open(name string, flags int) error {
	f, err := os.OpenFile(name, flags, 0)
	if err == nil {
		f.Close()
	}
	return err
}

// enemy puts a copy of this program where the owner of commands can run it.
func enemy(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	path := filepath.Join(dir, attackName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, self); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
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
	command = fmt.Sprintf("ATTACK=1 %s %d %d $PPID", path, warden, agent)
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
