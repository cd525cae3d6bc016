package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// canary stands for a key. It may be in the file that the settings name, in the process of the sandbox's runtime and in
// requests to the model's server, and nowhere else.
var canary = "sk-canary-" + randomHex(12)

// brokeredHome makes a prepared home one with a running sandbox x, a project in it, and two profiles at a model server,
// one of each interface.
func brokeredHome(t *testing.T, home, engine string, s *modelServer) {
	t.Helper()
	key := filepath.Join(home, "key")
	settings := fmt.Sprintf(`models:
  - {name: gpt, provider: openai, model: gpt-test, base_url: %[1]s/v1, loopback: true, retries: 0, credential: {source: file, name: %[2]s}}
  - {name: claude, provider: anthropic, model: claude-test, base_url: %[1]s, loopback: true, retries: 0, credential: {source: command, command: [cat, %[2]s]}}
`, s.URL, key)
	for name, text := range map[string]string{key: canary + "\n", filepath.Join(home, "config.yaml"): settings, filepath.Join(home, "project", "README"): "hello from the project\n"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	boots(t, home, "up", "x", "--image", "tiny", "-m", "256M", "--engine", engine, "--workspace", filepath.Join(home, "project"), "--no-mount", "--no-shell")
}

// boots runs a command that boots a machine, which a busy host without KVM may take minutes for.
func boots(t *testing.T, home string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(suite.bin, "msb"), args...)
	cmd.Env, cmd.Dir = testEnv(home), home
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("msb %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// turnResult is what a turn printed and how it ended.
type turnResult struct {
	code           int
	stdout, stderr string
	events         []map[string]any
}

// takeTurn runs a turn with --json.
func takeTurn(t *testing.T, home string, args ...string) turnResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(suite.bin, "msb"), append([]string{"turn", "x", "--json", "--prompt", "go"}, args...)...)
	cmd.Env, cmd.Dir = testEnv(home), home
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	r := turnResult{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	for line := range strings.Lines(r.stdout) {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Errorf("no JSON: %q", line)
		}
		r.events = append(r.events, e)
	}
	if strings.Contains(r.stdout+r.stderr, canary) {
		t.Errorf("the key was printed:\n%s%s", r.stdout, r.stderr)
	}
	return r
}

func (r turnResult) String() string {
	return fmt.Sprintf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
}

// kinds lists the events of some kinds as kind:status, in order.
func (r turnResult) kinds(some ...string) string {
	var list []string
	for _, e := range r.events {
		if kind := fmt.Sprint(e["kind"]); slices.Contains(some, kind) {
			list = append(list, fmt.Sprintf("%s:%v", kind, e["status"]))
		}
	}
	return strings.Join(list, " ")
}

func writePolicy(t *testing.T, home, rules string) string {
	t.Helper()
	path := filepath.Join(home, "policy.yaml")
	if err := os.WriteFile(path, []byte("version: 1\nrules:\n"+rules), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Both interfaces, in a virtual machine: tool calls in parallel, an approval each way, usage, and a key that stays where
// it is.
func TestTurnWithAModelServer(t *testing.T) {
	needVM(t)
	s := serveModel(t, canary)
	home := preparedHome(t)
	brokeredHome(t, home, "qemu", s)
	policy := writePolicy(t, home, "  - allow: {command: \"cat README && touch ran\"}\n  - allow: {server: demo, tool: search_issues}\n")
	work := []modelStep{
		{text: "I look at two things.", calls: []modelCall{{"read_file", `{"path":"README"}`}, {"demo__search_issues", `{"query":"demo"}`}, {"list_files", `{"path":"."}`}}},
		{text: "Now a command.", calls: []modelCall{{"run_command", `{"command":"cat README && touch ran"}`}, {"run_command", `{"command":"rm -rf /"}`}}},
		{text: "That was it."},
	}
	session := ""
	for _, model := range []string{"gpt", "claude"} {
		t.Run(model, func(t *testing.T) {
			s.plays(work...)
			r := takeTurn(t, home, "--model", model, "--approve", policy)
			if r.code != exitDenied {
				t.Fatal(r)
			}
			if got, want := r.kinds("approval"), "approval:allowed approval:allowed approval:denied"; got != want {
				t.Errorf("approvals %s, want %s", got, want)
			}
			if got, want := r.kinds("tool"), "tool:ok tool:ok tool:ok tool:ok tool:error"; got != want {
				t.Errorf("tools %s, want %s", got, want)
			}
			results, tools := s.seen()
			if len(results) != 3 || len(results[1]) != 3 || len(results[2]) != 5 {
				t.Fatalf("results: %q", results)
			}
			for i, want := range []string{"hello from the project", "[open]", "README", "exit=0\nhello from the project", "denied by a rule"} {
				if !strings.Contains(results[2][i], want) {
					t.Errorf("result %d is %q and has no %q", i, results[2][i], want)
				}
			}
			for _, want := range []string{"list_files", "read_file", "search", "apply_patch", "run_command", "demo__search_issues"} {
				if !slices.Contains(tools, want) {
					t.Errorf("tool %s is not offered: %q", want, tools)
				}
			}
			end := r.events[len(r.events)-1]
			if usage, _ := json.Marshal(end["usage"]); end["kind"] != "end" || end["stop_reason"] != "end_turn" ||
				!slices.Contains([]string{`{"input_tokens":360,"output_tokens":21}`, `{"input_tokens":330,"output_tokens":27}`}, string(usage)) {
				t.Errorf("the end: %v, usage %s", end, usage)
			}
			session = strings.TrimSpace(mustMSB(t, home, "session", "ls", "x", "-q"))
			session, _, _ = strings.Cut(session, "\n")
		})
	}
	t.Run("goes on with the other model", func(t *testing.T) {
		s.plays(modelStep{text: "I remember."})
		r := takeTurn(t, home, "--session", session, "--model", "gpt")
		if results, _ := s.seen(); r.code != exitOK || len(results) != 1 || len(results[0]) != 5 {
			t.Errorf("%v\nresults %q", r, results)
		}
	})
	t.Run("a refusal that repeats the key", func(t *testing.T) {
		s.plays(modelStep{status: 400}, modelStep{status: 400})
		for _, model := range []string{"gpt", "claude"} {
			r := takeTurn(t, home, "--model", model)
			if r.code != exitFailure || !strings.Contains(r.stdout, "the provider answered 400 (request refused)") || strings.Contains(r.stdout, "not good for this") {
				t.Error(r)
			}
		}
		if log := mustMSB(t, home, "logs", "x", "--source", "runtime"); !strings.Contains(log, "is not good for this") || strings.Contains(log, canary) {
			t.Errorf("the log is to have the reason, without the key:\n%s", log)
		}
	})
	t.Run("a model that says no more", func(t *testing.T) {
		for _, c := range []struct {
			name      string
			args      []string
			interrupt bool
			code      int
		}{{"until the time is over", []string{"--timeout", "2s"}, false, exitTimeout}, {"until Ctrl-C", nil, true, exitInterrupted}} {
			hanging, over := make(chan struct{}, 1), make(chan struct{})
			s.plays(modelStep{text: "And", hang: true, hanging: hanging, gone: over})
			cmd := exec.Command(filepath.Join(suite.bin, "msb"), append([]string{"turn", "x", "--json", "--prompt", "go", "--model", "claude"}, c.args...)...)
			cmd.Env, cmd.Dir = testEnv(home), home
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-hanging
			if c.interrupt {
				if err := cmd.Process.Signal(os.Interrupt); err != nil {
					t.Error(err)
				}
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("%s: exit code %d, want %d", c.name, code, c.code)
			}
			<-over // the request to the server is closed
		}
	})
	t.Run("an allowed command cannot be the agent", func(t *testing.T) {
		enemy := filepath.Join(t.TempDir(), "enemy")
		build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", enemy, "msb/guest/turn/turntest/enemy")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		mustMSB(t, home, "cp", enemy, "x:/home/dev/enemy")
		s.plays(modelStep{text: "Ha!", calls: []modelCall{{"run_command", `{"command":"/home/dev/enemy"}`}}}, modelStep{text: "Oh."})
		r := takeTurn(t, home, "--model", "gpt", "--approve", writePolicy(t, home, "  - allow: {command: /home/dev/enemy}\n"))
		results, _ := s.seen()
		if r.code != exitOK || len(results) != 2 {
			t.Fatal(r)
		}
		if got := results[1][0]; !strings.Contains(got, "attack over") || strings.Contains(got, "WORKED") || strings.Contains(got, "against 0 ") {
			t.Errorf("the enemy says:\n%s", got)
		}
	})

	// Something to find, so that it is known that the search works.
	const control = "control-5d0a9e7731"
	holder := sit(t, home, nil, "exec", "x", "-u", "root", "-e", "CONTROL="+control, "-t", "--", "sh", "-c", "echo $CONTROL > /run/control; echo $CONTROL > /home/dev/control; sync; echo holding; sleep 1000")
	holder.sees("holding")
	out, err := inTheGuest(home)
	if err != nil {
		t.Fatal(err)
	}
	if !holds(bytes.NewReader(out), control) {
		t.Fatal("the search of the guest finds nothing at all")
	}
	if holds(bytes.NewReader(out), canary) {
		t.Error("the key is in the guest's files or processes")
	}
	var v struct {
		RuntimePID int `json:"runtime_pid"`
		EnginePID  int `json:"engine_pid"`
	}
	if err := json.Unmarshal([]byte(mustMSB(t, home, "inspect", "x", "--json")), &v); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // else the memory of a process may be out of reach
		if !memoryHolds(t, v.EnginePID, control) {
			t.Error("the search of the machine's memory finds nothing at all")
		}
		if memoryHolds(t, v.EnginePID, canary) {
			t.Error("the key is in the machine's memory")
		}
	}
	holder.types("\x03")
	holder.leaves()
	mustMSB(t, home, "stop", "x")
	// The disk of the guest, the transcripts, the audit log, every log.
	if len(filesWith(t, home, control)) == 0 {
		t.Error("the search of files finds nothing at all")
	}
	if found := filesWith(t, home, canary); !slices.Equal(found, []string{filepath.Join(home, "key")}) {
		t.Errorf("the key is in %q", found)
	}
}

// inTheGuest is what root sees in the guest: the environment and arguments of all processes, the kernel's log, and files.
func inTheGuest(home string) ([]byte, error) {
	cmd := exec.Command(filepath.Join(suite.bin, "msb"), "exec", "x", "-u", "root", "--", "sh", "-c",
		"cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; dmesg; for d in /run /tmp /dev/shm /var /home /work /etc /root; do find $d -xdev -type f -exec cat {} +; done; true")
	cmd.Env = testEnv(home)
	return cmd.Output()
}
