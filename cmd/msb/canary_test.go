package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tap is a proxy in front of a control socket that keeps what the runtime says.
type tap struct {
	path string
	l    net.Listener
	work sync.WaitGroup

	mu    sync.Mutex
	heard bytes.Buffer
}

func newTap(t *testing.T, socket string) *tap {
	t.Helper()
	dir, err := os.MkdirTemp(suite.root, "tap")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{path: filepath.Join(dir, "control.sock")}
	if p.l, err = net.Listen("unix", p.path); err != nil {
		t.Fatal(err)
	}
	p.work.Go(func() {
		for {
			client, err := p.l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(client, socket) })
		}
	})
	t.Cleanup(p.close)
	return p
}

func (p *tap) serve(client net.Conn, socket string) {
	defer client.Close()
	server, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer server.Close()
	p.work.Go(func() {
		io.Copy(server, client)
		server.(*net.UnixConn).CloseWrite()
	})
	io.Copy(io.MultiWriter(client, p), server)
}

// Write keeps what was heard.
func (p *tap) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard.Write(b)
}

func (p *tap) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard.String()
}

func (p *tap) close() {
	p.l.Close()
	p.work.Wait()
}

// trace writes down all that processes write, to files, sockets and devices. It ends with stop.
func trace(t *testing.T, pids ...int) (path string, stop func()) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Log("what the processes write is not looked at, since there is no strace")
		return "", func() {}
	}
	path = filepath.Join(t.TempDir(), "trace")
	args := []string{"-f", "-q", "-s", "1000000", "-e", "trace=write,writev,pwrite64,pwritev,sendto,sendmsg,sendmmsg,io_uring_enter", "-e", "signal=none", "-o", path}
	for _, pid := range pids {
		args = append(args, "-p", strconv.Itoa(pid))
	}
	cmd := exec.Command(strace, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	traced := func() bool {
		for _, pid := range pids {
			tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
			for _, task := range tasks {
				if b, err := os.ReadFile(task); err == nil && bytes.Contains(b, []byte("TracerPid:\t0\n")) {
					return false
				}
			}
		}
		return true
	}
	for !traced() {
		select {
		case <-ended:
			t.Logf("what the processes write is not looked at, since they cannot be traced here: %s", said.String())
			return "", func() {}
		case <-time.After(10 * time.Millisecond):
		}
	}
	return path, func() {
		cmd.Process.Signal(syscall.SIGINT)
		<-ended
	}
}

// TestSecretsCanary rotates a random value through a sandbox and then looks for it everywhere.
func TestSecretsCanary(t *testing.T) {
	needVM(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can look into the memory of the machine")
	}
	// Whatever could write a core file may.
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: core.Max, Max: core.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_CORE, &core) })
	t.Setenv("GOTRACEBACK", "crash")

	b := newBox(t, "qemu", "-m", "256M")
	canary, marker := randomHex(24), randomHex(24)
	file := filepath.Join(t.TempDir(), "key") // outside of our home: the user's
	if err := os.WriteFile(file, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var v struct {
		RuntimePID    int    `json:"runtime_pid"`
		EnginePID     int    `json:"engine_pid"`
		ControlSocket string `json:"control_socket"`
	}
	b.inspect(&v)
	replies := newTap(t, v.ControlSocket)
	written, stop := trace(t, v.RuntimePID, v.EnginePID)
	var printed bytes.Buffer
	modify := func(stdin string, env []string, args ...string) {
		t.Helper()
		cmd := b.cmd(append([]string{"modify"}, args...)...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &printed, &printed
		cmd.Env = append(cmd.Env, env...)
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, printed.String())
		}
	}
	modify("", []string{"FROM_ENV=" + canary}, b.name, "--secret", "FROM_ENV@a.example")
	modify(canary, nil, b.name, "--secret", "ONCE@a.example", "--secret-from", "stdin")
	modify("", nil, b.name, "--secret", "FROM_FILE@a.example,*.b.example", "--secret-from", "file:"+file)
	modify(canary, nil, b.name, "--secret", "FROM_ENV@c.example", "--secret-from", "stdin", "--json")
	modify("", nil, b.name, "--secret", "KEPT@a.example", "--secret-from", "file:"+file)
	// Through the tap, framed and as JSON, with changes that fail behind the value, and a request that is none.
	modify(canary, nil, "--socket", replies.path, "--secret", "ONCE@a.example", "--secret-from", "stdin")
	for _, line := range []string{
		`{"op":"secrets_update","changes":[{"change":"rotate","name":"ONCE","value":"` + canary + `"},{"change":"rotate","name":"NOBODY","value":"` + canary + `"}]}`,
		`{"op":"secrets_update","changes":[{"change":"` + canary + `","name":"ONCE","value":"` + canary + `"}]}`,
		`{"op":"secrets_update","changes":[{"change":"rotate","name":"ONCE","value":"` + canary + `","hosts":["` + canary + `"]}]`,
	} {
		if got := sayLine(t, replies.path, line); !strings.Contains(got, `"ok":false`) {
			t.Errorf("got %s", got)
		}
	}
	modify("", nil, b.name, "--secret-rm", "FROM_ENV", "--secret-rm", "ONCE")
	b.msb("pause", b.name, "-q")
	b.msb("resume", b.name, "-q")
	b.msb("metrics", b.name)
	// What stands in a file of the guest is found in the machine's memory: the value would be, too.
	b.msb("exec", b.name, "-u", "root", "--", "sh", "-c", "echo "+marker+" >/dev/shm/marker")

	look := func(when string) {
		t.Helper()
		b.inspect(&v)
		if !memoryHolds(t, v.RuntimePID, canary) {
			t.Errorf("%s: the runtime does not hold the value: this test looks in the wrong place", when)
		}
		if memoryHolds(t, v.EnginePID, canary) {
			t.Errorf("%s: the value is in the memory of the machine", when)
		}
		for _, path := range filesWith(t, b.home, canary) {
			t.Errorf("%s: the value is in %s", when, path)
		}
		for _, what := range []string{"cmdline", "environ"} {
			all, _ := filepath.Glob("/proc/[0-9]*/" + what)
			for _, path := range all {
				if content, err := os.ReadFile(path); err == nil && bytes.Contains(content, []byte(canary)) {
					t.Errorf("%s: the value is in %s", when, path)
				}
			}
		}
		// In the guest, without telling it what is looked for.
		found, _ := b.try("exec", b.name, "-u", "root", "--", "sh", "-c",
			fmt.Sprintf("a=%s; b=%s; grep -rlF $a$b /etc /home /root /tmp /var /run /.msb /dev/shm 2>/dev/null; cat /proc/[0-9]*/environ 2>/dev/null | grep -cF $a$b", canary[:24], canary[24:]))
		if strings.TrimSpace(found) != "0" {
			t.Errorf("%s: in the guest: %s", when, found)
		}
	}
	look("after changes")
	if !memoryHolds(t, v.EnginePID, marker) {
		t.Error("the memory of the machine does not show the guest's: this test looks in the wrong place")
	}
	stop()
	if written != "" {
		if yes, err := fileHolds(written, `control.secrets.result`); !yes || err != nil {
			t.Errorf("the trace does not hold what the runtime wrote: this test looks in the wrong place (%v)", err)
		}
		if yes, err := fileHolds(written, canary); yes || err != nil {
			t.Errorf("the runtime or the machine wrote the value somewhere (%v)", err)
		}
	}
	if said := replies.String(); !strings.Contains(said, "control.secrets.result") || !strings.Contains(said, "unknown secret") || strings.Contains(said, canary) {
		t.Errorf("the runtime's replies: %q", said)
	}
	if strings.Contains(printed.String(), canary) {
		t.Error("modify printed the value")
	}
	b.msb("restart", "-q", b.name)
	look("after a restart") // read again from its file
	if out := b.msb("inspect", b.name); !strings.Contains(out, "KEPT for a.example (file:") || strings.Contains(out, "ONCE") {
		t.Errorf("inspect: %s", out)
	}

	// A runtime that crashes leaves no core file and no value in its last words.
	if err := syscall.Kill(v.RuntimePID, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); !errors.Is(syscall.Kill(v.RuntimePID, 0), syscall.ESRCH); time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.RuntimePID)); err != nil || bytes.Contains(b, []byte(") Z ")) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the runtime does not end")
		}
	}
	for _, path := range filesWith(t, b.home, canary) {
		t.Errorf("after a crash: the value is in %s", path)
	}
	cores, _ := filepath.Glob("/core*") // a runtime's directory is /
	for _, path := range cores {
		if yes, _ := fileHolds(path, canary); yes {
			t.Errorf("after a crash: the value is in %s", path)
		}
	}
}

// sayLine sends one JSON line to a control socket and returns the reply.
func sayLine(t *testing.T, socket, line string) string {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintln(c, line)
	reply, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(reply)
}
