package warden_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

// gone waits until no process has the mark in its command line.
func gone(t *testing.T, mark string) {
	t.Helper()
	deadline := time.Now().Add(turntest.Patience)
	for {
		left := marked(mark)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes are left: %v", left)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func marked(mark string) []string {
	var left []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		b, _ := os.ReadFile(name)
		// The sleepers themselves, not shells that were given their text.
		if f := strings.Split(string(b), "\x00"); len(f) > 1 && f[0] == "sleep" && f[1] == mark {
			left = append(left, name)
		}
	}
	return left
}

// sleepers is a command whose children try to outlive it in every way, and a number that marks them.
func sleepers(t *testing.T) (mark, command string) {
	mark = fmt.Sprintf("1%05d%d", os.Getpid()%100000, time.Now().UnixNano()%1000000)
	return mark, fmt.Sprintf(`(sleep %[1]s &) ; setsid sleep %[1]s >/dev/null 2>&1 & nohup setsid sh -c 'trap "" TERM HUP INT; sleep %[1]s & sleep %[1]s' >/dev/null 2>&1 &
( ( setsid sleep %[1]s </dev/null >/dev/null 2>&1 & ) & )
sleep 0.3; echo started`, mark)
}

func TestCommandLeavesNothing(t *testing.T) {
	mark, command := sleepers(t)
	_, got := run(t, command)
	if !strings.HasPrefix(got, "exit=0\nstarted") {
		t.Errorf("got %q", got)
	}
	if left := marked(mark); len(left) > 0 {
		t.Errorf("processes are left after the command's end: %v", left)
	}
}

func TestTimeoutKillsAll(t *testing.T) {
	mark, command := sleepers(t)
	var result string
	a := start(t, turntest.Script{
		Approve: allow,
		Model: func(n int, r turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
			if n == 0 {
				return turntest.Use([2]string{"run_command", fmt.Sprintf(`{"command":%q,"timeout_sec":5}`, "echo started; "+command+"; sleep "+mark)})
			}
			result = turntest.Last(r)
			return turntest.Say("done")
		},
	})
	if _, err := a.Start(turnrpc.UserTurn{Text: "go"}).Wait(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(result, "killed after 5s") || !strings.Contains(result, "started") {
		t.Errorf("got %q, want word of the timeout and the output until then", result)
	}
	if left := marked(mark); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

func TestCancelKillsCommand(t *testing.T) {
	mark, command := sleepers(t)
	a := start(t, turntest.Script{
		Hello: func(h turnrpc.Hello) turnrpc.HelloResult {
			return turnrpc.HelloResult{Accepted: true, Protocol: 4, Extensions: h.Extensions}
		},
		Approve: allow,
		Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
			return turntest.Use(turntest.Command(command + "; sleep " + mark))
		},
	})
	turn := a.Start(turnrpc.UserTurn{Text: "go"})
	a.Await("output of the command", func(e turnrpc.AgentEvent) bool {
		return e.Kind == turnrpc.EventOutput && strings.Contains(e.Text, "started")
	})
	turn.Cancel()
	_, err := turn.Wait()
	if err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("the turn ended with %v", err)
	}
	if left := marked(mark); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// However the agent or the warden goes, its command goes too.
func TestDeathTakesCommandAlong(t *testing.T) {
	for name, kill := range map[string]func(t *testing.T, a *session) error{
		"warden killed": func(_ *testing.T, a *session) error { return a.cmd.Process.Kill() },
		"agent killed": func(t *testing.T, a *session) error {
			return unix.Kill(agentOf(t, a.cmd.Process.Pid), unix.SIGKILL)
		},
		"connection closed": func(_ *testing.T, a *session) error { return a.Conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			mark, command := sleepers(t)
			a := start(t, turntest.Script{
				Hello: func(h turnrpc.Hello) turnrpc.HelloResult {
					return turnrpc.HelloResult{Accepted: true, Protocol: 4, Extensions: h.Extensions}
				},
				Approve: allow,
				Model: func(int, turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
					return turntest.Use(turntest.Command(command + "; sleep " + mark))
				},
			})
			a.Start(turnrpc.UserTurn{Text: "go"})
			a.Await("output of the command", func(e turnrpc.AgentEvent) bool { return e.Kind == turnrpc.EventOutput })
			if len(marked(mark)) == 0 {
				t.Fatal("the command's children do not run")
			}
			if err := kill(t, a); err != nil {
				t.Fatal(err)
			}
			gone(t, mark)
		})
	}
}

// The file tools have the rights of the workspace's owner, no more and no less.
func TestFileRights(t *testing.T) {
	a := start(t, turntest.Script{})
	a.Greeted()
	put := func(name, text string, mode os.FileMode, uid int) {
		t.Helper()
		path := filepath.Join(a.repo, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	put("mine", "mine\n", 0o600, 1000)
	put("root", "secret\n", 0o600, 0)
	put("agents", "secret\n", 0o600, 990)
	if err := os.Link(filepath.Join(a.repo, "root"), filepath.Join(a.repo, "linked")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"mine": "mine\n", "root": "", "agents": "", "linked": ""} {
		var r turnrpc.ReadFileResult
		err := a.Call(turnrpc.MethodReadFile, turnrpc.ReadFile{Path: name}, &r)
		if r.Content != want || (err == nil) != (want != "") {
			t.Errorf("read %s: %q, %v", name, r.Content, err)
		}
	}
	var r turnrpc.ApplyPatchResult
	err := a.Call(turnrpc.MethodApplyPatch, turnrpc.ApplyPatch{Patch: "--- /dev/null\n+++ b/new/file\n@@ -0,0 +1 @@\n+hello\n"}, &r)
	if err != nil || !r.OK {
		t.Fatalf("apply: %+v, %v", r, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(a.repo, "new/file"), &st); err != nil || st.Uid != 1000 || st.Gid != 1000 {
		t.Errorf("the new file belongs to %d:%d, %v", st.Uid, st.Gid, err)
	}
	// The conversation is the agent's alone.
	turn := a.Start(turnrpc.UserTurn{Text: "remember"})
	a.AwaitCall(turnrpc.MethodProviderOpen)
	turn.Cancel()
	_, _ = turn.Wait()
	if err := unix.Stat(filepath.Join(a.state, "sid", "context.json"), &st); err != nil || st.Uid != 990 || st.Mode&0o777 != 0o600 {
		t.Errorf("the conversation belongs to %d with mode %o, %v", st.Uid, st.Mode&0o777, err)
	}
	if err := unix.Stat(filepath.Join(a.state, "sid"), &st); err != nil || st.Uid != 990 || st.Mode&0o777 != 0o700 {
		t.Errorf("the session's folder belongs to %d with mode %o, %v", st.Uid, st.Mode&0o777, err)
	}
}

func TestStartRefuses(t *testing.T) {
	bin := guestBinary(t)
	for name, c := range map[string]struct{ line, want string }{
		"secrets":     {`{"session_id":"sid","capability":"cap","secrets":{"K":"v"}}`, "secrets"},
		"MCP servers": {`{"session_id":"sid","capability":"cap","mcp_servers":[{"name":"x"}]}`, "MCP"},
		"no session":  {`{"capability":"cap"}`, "session_id"},
		"path":        {`{"session_id":"../x","capability":"cap"}`, "session_id"},
		"no secret":   {`{"session_id":"sid"}`, "capability"},
		"garbage":     {`what`, "JSON"},
		"long":        {strings.Repeat("x", 70<<10), "longer"},
		"repo":        {`{"session_id":"sid","capability":"cap","repo_dir":"rel"}`, "repo_dir"},
	} {
		t.Run(name, func(t *testing.T) {
			out, code := runGuest(t, bin, c.line+"\n")
			if code != 1 || !strings.Contains(out, c.want) {
				t.Errorf("exit code %d: %s", code, out)
			}
			if strings.Contains(out, `"v"`) {
				t.Errorf("a secret was printed: %s", out)
			}
		})
	}
}

func TestOldHostIsRefused(t *testing.T) {
	a := start(t, turntest.Script{Hello: func(turnrpc.Hello) turnrpc.HelloResult {
		return turnrpc.HelloResult{Accepted: true, Protocol: 3}
	}})
	err := <-a.done
	a.done <- err
	if err == nil || !strings.Contains(a.stderr.String(), "host protocol too old") {
		t.Errorf("%v, stderr %q", err, a.stderr)
	}
}

func TestShutdownEndsWithZero(t *testing.T) {
	a := start(t, turntest.Script{})
	a.Greeted()
	if err := a.Call(turnrpc.MethodShutdown, turnrpc.OK{OK: true}, nil); err != nil {
		t.Fatal(err)
	}
	err := <-a.done
	a.done <- nil
	if err != nil {
		t.Errorf("%v: %s", err, a.stderr)
	}
}
