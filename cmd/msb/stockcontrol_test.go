package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"msb/protocol/control"
	"msb/protocol/frame"
)

// stockRuntime serves the sockets of a sandbox of a stock installation, called demo: the control socket with published
// messages, the agent socket with none.
type stockRuntime struct {
	home      string
	published map[string][]byte // frames
	json      map[string]string // replies by operation
	listeners []net.Listener
	work      sync.WaitGroup

	mu     sync.Mutex
	lines  []string // requests as they came
	frames [][]byte
}

func (s *stockRuntime) socket(name string) string {
	return filepath.Join(s.home, ".microsandbox/run/sandboxes/2a97516c354b68848cdbd8f5", name)
}

func newStockRuntime(t *testing.T, framed bool) *stockRuntime {
	t.Helper()
	home, err := newHome(false)
	if err != nil {
		t.Fatal(err)
	}
	s := &stockRuntime{home: home, published: map[string][]byte{}, json: map[string]string{
		"pause_state": `{"ok":true}`, "pause": `{"ok":true}`, "resume": `{"ok":true}`, "secrets_update": `{"ok":true}`,
		"capabilities":  `{"ok":true,"capabilities":{"cpu_resize":true,"memory_resize":true,"secrets_update":true}}`,
		"memory_state":  `{"ok":true,"memory":{"boot_mib":512,"target_mib":2048,"current_mib":1024,"max_mib":4096}}`,
		"memory_target": `{"ok":true,"memory":{"boot_mib":512,"target_mib":2048,"current_mib":1024,"max_mib":4096}}`,
		"cpu_state":     `{"ok":true,"cpu":{"possible":4,"requested_online":2,"actual_online":1,"enforced":2}}`,
		"cpu_target":    `{"ok":true,"cpu":{"possible":4,"requested_online":2,"actual_online":1,"enforced":2}}`,
	}}
	if framed {
		s.json["capabilities"] = strings.TrimSuffix(s.json["capabilities"], "}") + `,"control_protocols":["json","cbor"]}`
	}
	raw, err := os.ReadFile("../../protocol/control/testdata/frames.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Cases []struct {
			Name  string
			Frame string `json:"frame_hex"`
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for _, c := range doc.Cases {
		if s.published[c.Name], err = hex.DecodeString(c.Frame); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(s.socket("")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(s.socket(""), 0o700); err != nil {
		t.Fatal(err)
	}
	s.listen(t, "agent.sock", func(c net.Conn) { io.Copy(io.Discard, c) })
	s.listen(t, "control.sock", s.control)
	t.Cleanup(func() {
		for _, l := range s.listeners {
			l.Close()
		}
		s.work.Wait()
	})
	return s
}

func (s *stockRuntime) listen(t *testing.T, name string, serve func(net.Conn)) {
	t.Helper()
	l, err := net.Listen("unix", s.socket(name))
	if err != nil {
		t.Fatal(err)
	}
	s.listeners = append(s.listeners, l)
	s.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.work.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(time.Minute))
				serve(c)
			})
		}
	})
}

func (s *stockRuntime) control(c net.Conn) {
	r := bufio.NewReader(c)
	first, err := r.Peek(1)
	switch {
	case err != nil:
	case first[0] == 0:
		s.framed(c, r)
	default:
		line, _ := r.ReadString('\n')
		s.mu.Lock()
		s.lines = append(s.lines, line)
		s.mu.Unlock()
		var request struct{ Op string }
		json.Unmarshal([]byte(line), &request)
		reply := s.json[request.Op]
		if reply == "" {
			reply = `{"ok":false,"error":"invalid control request: unknown variant ` + request.Op + `"}`
		}
		fmt.Fprintln(c, reply)
	}
}

func (s *stockRuntime) framed(c net.Conn, r *bufio.Reader) {
	reader := frame.NewReader(r)
	for {
		f, err := reader.Next()
		if err != nil {
			return
		}
		e, err := control.ParseEnvelope(f.Body)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.frames = append(s.frames, bytes.Clone(f.Raw))
		s.mu.Unlock()
		reply := bytes.Clone(s.published[map[string]string{
			control.TypeHello: "welcome", control.TypeCapabilities: "capabilities_result",
			control.TypeMemoryState: "memory_state", control.TypeMemoryTarget: "memory_state",
			control.TypeCPUState: "cpu_state", control.TypeCPUTarget: "cpu_state",
			control.TypeSecretsUpdate: "secrets_failed",
		}[e.T]])
		if len(reply) == 0 {
			reply = bytes.Clone(s.published["unsupported_operation"])
		}
		copy(reply[4:8], f.Raw[4:8])
		c.Write(reply)
	}
}

// asked returns what came since the last call: operations in JSON, message types framed.
func (s *stockRuntime) asked() (lines []string, frames [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines, frames = s.lines, s.frames
	s.lines, s.frames = nil, nil
	return lines, frames
}

// TestStockRuntime: the commands work with a sandbox of a stock installation, by its name and by its sockets, framed
// and in JSON, and say what it says.
func TestStockRuntime(t *testing.T) {
	for _, framed := range []bool{true, false} {
		mode := map[bool]string{true: "framed", false: "json"}[framed]
		t.Run(mode, func(t *testing.T) {
			s := newStockRuntime(t, framed)
			b := &box{t: t, home: s.home, name: "demo"}
			for _, who := range [][]string{{"demo"}, {"--socket", s.socket("control.sock")}, {"--socket", s.socket("agent.sock")}} {
				run := func(want string, fails bool, args ...string) {
					t.Helper()
					out, err := b.try(append(args, who...)...)
					if (err != nil) != fails || !strings.Contains(out, want) {
						t.Errorf("msb %v %v: %v: %s", args, who, err, out)
					}
				}
				run("1024 MiB of at most 4096 MiB, target 2048 MiB", false, "modify", "-m", "2G", "--no-wait")
				lines, frames := s.asked()
				if framed {
					id17 := func(raw []byte) []byte { return append(append(bytes.Clone(raw[:4]), 0, 0, 0, 17), raw[8:]...) }
					if !slices.Equal(lines, []string{"{\"op\":\"capabilities\"}\n"}) || len(frames) != 2 || !bytes.Equal(frames[0], s.published["hello"]) ||
						!bytes.Equal(id17(frames[1]), s.published["memory_target"]) {
						t.Errorf("sent %q, %x", lines, frames)
					}
				} else if !slices.Equal(lines, []string{"{\"op\":\"capabilities\"}\n", "{\"op\":\"memory_target\",\"total_mib\":2048}\n"}) || len(frames) > 0 {
					t.Errorf("sent %q, %x", lines, frames)
				}
				run("1 of at most 4 CPUs, target 2", false, "modify", "-c", "2", "--no-wait")
				run("paused", false, "pause")
				run("running", false, "resume")
				run("1024 MiB, target 2048 MiB, fixed 512 MiB, maximum 4096 MiB", false, "inspect", "--live")
				run("--live asks its runtime", true, "inspect")
				run("of 1024 MiB (target 2048)", false, "metrics")
				run("not --restart", true, "modify", "-m", "1G", "--restart")
				run("not --label", true, "modify", "-m", "1G", "--label", "a=b")
				run("cannot compact", true, "modify", "--compact")
				run("nothing to change", true, "modify")
				s.asked()
				run("2G", false, "modify", "-m", "2G", "--dry-run")
				if lines, frames := s.asked(); len(lines)+len(frames) > 0 {
					t.Errorf("a dry run sent %q, %x", lines, frames)
				}
			}
			cmd := b.cmd("modify", "demo", "--secret", "TEST_KEY@example.test", "--secret-rm", "OLD_KEY")
			cmd.Env = append(cmd.Env, "TEST_KEY=fixture-only")
			out, err := cmd.CombinedOutput()
			if framed && (err == nil || !strings.Contains(string(out), "change 2 of 3 failed and those before it stay: unknown secret")) || !framed && err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if left, _ := filepath.Glob(filepath.Join(s.home, "sandboxes", "*")); len(left) > 0 {
				t.Errorf("written: %v", left)
			}
		})
	}
}

// TestImpostor: a process that has put itself in the place of a runtime's control socket is sent nothing.
func TestImpostor(t *testing.T) {
	needImages(t)
	if os.Geteuid() != 0 {
		t.Skip("the process engine is for root")
	}
	b := newBox(t, "process")
	var v struct {
		ControlSocket string `json:"control_socket"`
		AgentSocket   string `json:"agent_socket"`
	}
	b.inspect(&v)
	s := newStockRuntime(t, true)
	if err := os.Rename(v.ControlSocket, v.ControlSocket+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(s.socket("control.sock"), v.ControlSocket); err != nil {
		t.Skipf("sockets cannot be linked here: %v", err)
	}
	for _, args := range [][]string{
		{"modify", b.name, "-c", "1"}, {"pause", b.name}, {"resume", b.name}, {"inspect", b.name, "--live"}, {"metrics", b.name},
	} {
		if out, err := b.try(args...); err == nil || !strings.Contains(out, "runtime session changed") {
			t.Errorf("msb %v: %v: %s", args, err, out)
		}
	}
	// The same for a stock sandbox, whose runtime is known by its agent socket.
	if err := os.Remove(s.socket("agent.sock")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(v.AgentSocket, s.socket("agent.sock")); err != nil {
		t.Fatal(err)
	}
	stock := &box{t: t, home: s.home, name: "demo"}
	if out, err := stock.try("modify", "demo", "-m", "2G"); err == nil || !strings.Contains(out, "runtime session changed") {
		t.Errorf("%v: %s", err, out)
	}
	if lines, frames := s.asked(); len(lines)+len(frames) > 0 {
		t.Errorf("the impostor got %q, %x", lines, frames)
	}
	if err := os.Rename(v.ControlSocket+".moved", v.ControlSocket); err != nil {
		t.Fatal(err)
	}
	b.msb("inspect", b.name, "--live")
}

// TestRuntimeDiesBeforeItsReply: the request was sent, so what became of it is not known, and it is not sent again.
func TestRuntimeDiesBeforeItsReply(t *testing.T) {
	needImages(t)
	if os.Geteuid() != 0 {
		t.Skip("the process engine is for root")
	}
	b := newBox(t, "process")
	var v struct {
		RuntimePID    int    `json:"runtime_pid"`
		ControlSocket string `json:"control_socket"`
	}
	b.inspect(&v)
	// Between the client and the runtime: the runtime is killed as soon as the client's request has been seen.
	dir, err := os.MkdirTemp(suite.root, "mid")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	requests := 0
	var work sync.WaitGroup
	work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer client.Close()
				server, err := net.Dial("unix", v.ControlSocket)
				if err != nil {
					return
				}
				defer server.Close()
				work.Go(func() {
					defer server.(*net.UnixConn).CloseWrite()
					buf := make([]byte, 64<<10)
					for {
						n, err := client.Read(buf)
						if bytes.Contains(buf[:n], []byte(control.TypeSecretsUpdate)) {
							mu.Lock()
							requests++
							mu.Unlock()
							syscall.Kill(v.RuntimePID, syscall.SIGKILL)
							return
						}
						if _, werr := server.Write(buf[:n]); err != nil || werr != nil {
							return
						}
					}
				})
				io.Copy(client, server)
			})
		}
	})
	defer func() { l.Close(); work.Wait() }()
	cmd := b.cmd("modify", "--socket", l.Addr().String(), "--secret", "A@a.example")
	cmd.Env = append(cmd.Env, "A=value")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the request was sent and its outcome is unknown") {
		t.Errorf("%v: %s", err, out)
	}
	mu.Lock()
	defer mu.Unlock()
	if requests != 1 {
		t.Errorf("the request was sent %d times", requests)
	}
}

// TestStockFlags: every flag that a stock msb has is known, even where all it gets is a sentence.
func TestStockFlags(t *testing.T) {
	a := &app{}
	for _, tt := range []struct {
		cmd   *cobra.Command
		flags string
	}{
		{newModifyCmd(a), "compact layers disk root-disk-only cpus max-cpus memory max-memory root-disk env env-rm label label-rm workdir secret secret-rm dry-run next-start restart format"},
		{newMetricsCmd(a), "format watch follow interval all sort"},
		{newPauseCmd(a), "guest-flush quiet"},
		{newResumeCmd(a), "quiet"},
		{newInspectCmd(a), "format"},
	} {
		for name := range strings.FieldsSeq(tt.flags) {
			if tt.cmd.Flags().Lookup(name) == nil {
				t.Errorf("msb %s has no --%s", tt.cmd.Name(), name)
			}
		}
	}
}
