package fusefs_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/agentclient"
	"msb/fusefs"
	"msb/guest/agent"
	guestexec "msb/guest/exec"
	wire "msb/protocol/agent"
	"msb/vmm/relay"
)

// The process that serves a mount must not use it, and neither may the guest
// behind it: this test binary starts itself again, once as the sandbox (the
// guest's agent behind a relay, working on a local directory) and once as the
// mount. The tests are the programs that use the mount.
const (
	roleEnv   = "FUSEFS_TEST_ROLE"
	configEnv = "FUSEFS_TEST_CONFIG"
)

// patience is how long a test waits before it gives up.
const patience = time.Minute

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "":
		undisturbed()
		os.Exit(m.Run())
	case "guest":
		serveGuest()
	case "mount":
		serveMount()
	}
}

// undisturbed starts this program anew without the signals by which the Go
// runtime takes turns between goroutines: one that comes in a system call on the
// mount interrupts it, and the tests want to see the mount's own answers.
func undisturbed() {
	const setting = "asyncpreemptoff=1"
	if strings.Contains(os.Getenv("GODEBUG"), setting) {
		os.Setenv("GODEBUG", strings.Trim(strings.ReplaceAll(os.Getenv("GODEBUG"), setting, ""), ",")) // not for the helpers
		return
	}
	self, err := os.Executable()
	if err != nil {
		fail(err)
	}
	os.Setenv("GODEBUG", strings.Trim(os.Getenv("GODEBUG")+","+setting, ","))
	fail(syscall.Exec(self, os.Args, os.Environ()))
}

type config struct {
	Socket, Dir string
	Script      string // name of a script for the peer; "" = the real agent
	Stock       bool   // use nothing that a stock agent does not have
	Relayed     bool   // everything goes through the relay
	Few         uint32 // ids of a connection; 0 = as many as the relay gives
	Options     fusefs.Options
}

// files is the socket that goes past the relay.
func (c config) files() string { return c.Socket + ".files" }

func readConfig() (c config) {
	if err := json.Unmarshal([]byte(os.Getenv(configEnv)), &c); err != nil {
		fail(err)
	}
	return c
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "helper:", err)
	os.Exit(3)
}

// serveGuest is a sandbox until its stdin is closed.
func serveGuest() {
	syscall.Umask(0o022)
	c := readConfig()
	l, err := listen(c.Socket)
	if err != nil {
		fail(err)
	}
	if err := os.Chmod(c.Socket, 0o666); err != nil {
		fail(err)
	}
	if c.Script == lyingNodes {
		go (&peer{nodes: newLiar()}).serve(l)
	} else if c.Script != "" {
		script := scripts[c.Script]
		if script == nil {
			fail(fmt.Errorf("no script %q", c.Script))
		}
		go (&peer{script: script(c.Dir)}).serve(l)
	} else {
		files, err := listen(c.files())
		if err != nil {
			fail(err)
		}
		if err := os.Chmod(c.files(), 0o666); err != nil {
			fail(err)
		}
		serveAgent(l, files)
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
}

func serveAgent(l, files net.Listener) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		fail(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "port")
		if ends[i], err = net.FileConn(f); err != nil {
			fail(err)
		}
		f.Close()
	}
	go agent.Serve(context.Background(), agent.Ports{Control: ends[0], Files: files}, agent.Machine{}, guestexec.NewReaper())
	g, err := relay.Boot(context.Background(), ends[1], nil, wire.BootstrapPayload{SecurityProfile: wire.SecurityDefault})
	if err != nil {
		fail(err)
	}
	go relay.New(g, relay.Options{}).Serve(l)
}

// serveMount is a mount until its stdin is closed.
func serveMount() {
	c := readConfig()
	if c.Stock {
		fusefs.PathsOnly()
	}
	fusefs.LimitEntries(100000) // TestEndlessDirectory; the others stay below
	c.Options.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	socket := c.Socket
	if c.Few > 0 {
		socket += ".few"
		l, err := listen(socket)
		if err != nil {
			fail(err)
		}
		go serveFew(l, c.Socket, c.Few)
	}
	dial := func(ctx context.Context) (*agentclient.Client, error) { return agentclient.Dial(ctx, socket) }
	if !c.Relayed {
		c.Options.Direct = func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.files())
		}
	}
	m, err := fusefs.Mount(context.Background(), c.Dir, dial, c.Options)
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	go func() {
		io.Copy(io.Discard, os.Stdin)
		if err := m.Unmount(); err != nil {
			fail(err)
		}
	}()
	m.Wait()
	fmt.Println("gone")
}

// helper is one of the processes.
type helper struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string
	log   *output
	done  chan struct{}
}

type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// start runs this binary in a role. as, when not nil, is who runs it.
func start(t *testing.T, role string, c config, as *syscall.Credential, env ...string) *helper {
	t.Helper()
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	h := &helper{t: t, lines: make(chan string, 16), log: &output{}, done: make(chan struct{})}
	h.cmd = exec.Command(selfBinary(t, as))
	h.cmd.Env = append(append(os.Environ(), roleEnv+"="+role, configEnv+"="+string(data)), env...)
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	h.cmd.Dir = "/"
	h.cmd.Stderr = h.log
	stdout, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(h.done)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			h.lines <- s.Text()
		}
		close(h.lines)
		h.cmd.Wait()
	}()
	t.Cleanup(func() {
		h.kill()
		if log := h.log.String(); strings.Contains(log, "panic") || strings.Contains(log, "DATA RACE") || t.Failed() {
			t.Errorf("%s process said:\n%s", role, log)
		}
	})
	return h
}

// selfBinary is this test binary, at a place that as can reach.
func selfBinary(t *testing.T, as *syscall.Credential) string {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if as == nil {
		return self
	}
	dir := publicDir(t)
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "fusefs.test")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// publicDir is a temporary directory that other users can enter.
func publicDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "fusefs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// expect waits for a line of output.
func (h *helper) expect(want string) {
	h.t.Helper()
	select {
	case line := <-h.lines:
		if line != want {
			h.t.Fatalf("helper said %q, want %q\n%s", line, want, h.log)
		}
	case <-time.After(patience):
		h.t.Fatalf("helper did not say %q\n%s", want, h.log)
	}
}

// stop ends the helper by closing its stdin and waits for it.
func (h *helper) stop() {
	h.t.Helper()
	h.stdin.Close()
	select {
	case <-h.done:
	case <-time.After(patience):
		h.t.Fatalf("helper does not end\n%s", h.log)
	}
}

func (h *helper) kill() {
	h.cmd.Process.Kill()
	<-h.done
}

// sandbox is a guest and a mount of it.
type sandbox struct {
	t      *testing.T
	guest  string // the guest's directory
	dir    string // the mount point
	socket string
	agent  *helper
	mount  *helper
	opts   fusefs.Options
	script string
	stock  bool

	relayed bool
	few     uint32
}

func needFUSE(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	f.Close()
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			t.Skip("fusermount3 is missing: apt-get install fuse3")
		}
	}
}

// newSandbox starts a guest and mounts it.
func newSandbox(t *testing.T, change func(*sandbox)) *sandbox {
	t.Helper()
	needFUSE(t)
	base := publicDir(t)
	s := &sandbox{t: t, guest: filepath.Join(base, "guest"), dir: filepath.Join(base, "mnt"), socket: filepath.Join(base, "s")}
	for _, d := range []string{s.guest, s.dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(s)
	}
	s.opts.Root = s.guest
	if s.opts.NameTimeout == 0 { // a busy machine may make a good guest slow
		s.opts.NameTimeout, s.opts.DataTimeout = 5*patience, 5*patience
	}
	s.startGuest()
	s.startMount()
	return s
}

func (s *sandbox) startGuest() {
	s.t.Helper()
	s.agent = start(s.t, "guest", config{Socket: s.socket, Dir: s.guest, Script: s.script}, nil)
	s.agent.expect("ready")
}

func (s *sandbox) startMount(env ...string) {
	s.t.Helper()
	s.mount = start(s.t, "mount", config{Socket: s.socket, Dir: s.dir, Options: s.opts, Stock: s.stock, Relayed: s.relayed, Few: s.few}, nil, env...)
	s.t.Cleanup(func() { fusefs.Unmount(s.dir) })
	s.mount.expect("ready")
}

// at returns a path in the mount.
func (s *sandbox) at(name string) string { return filepath.Join(s.dir, name) }

// in returns a path in the guest.
func (s *sandbox) in(name string) string { return filepath.Join(s.guest, name) }

// sh runs a shell script in the mount.
func (s *sandbox) sh(script string) string {
	s.t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 5*patience)
	defer stop()
	cmd := exec.CommandContext(ctx, "sh", "-ec", script)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "GUEST="+s.guest, "MNT="+s.dir, "HOME=/nonexistent",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// eachBackend runs a test with all that our agent offers and with what a stock
// one does.
func eachBackend(t *testing.T, test func(t *testing.T, stock bool)) {
	t.Run("nodes", func(t *testing.T) { test(t, false) })
	t.Run("stock", func(t *testing.T) { test(t, true) })
}

// fast fails the test when f takes longer than limit.
func fast(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	begin := time.Now()
	go func() { defer close(done); f() }()
	select {
	case <-done:
		if took := time.Since(begin); took > limit {
			t.Errorf("%s took %v, want at most %v", what, took, limit)
		}
	case <-time.After(patience + limit):
		t.Fatalf("%s hangs", what)
	}
}

// seen waits until the mount shows what the guest has made of a name.
func (s *sandbox) seen(name string) {
	s.t.Helper()
	s.await(name+" as the guest has it", func() bool {
		var guest, host syscall.Stat_t
		gerr, herr := syscall.Lstat(s.in(name), &guest), syscall.Lstat(s.at(name), &host)
		if gerr != nil || herr != nil {
			return gerr == herr
		}
		if s.stock {
			return guest.Size == host.Size && guest.Mtim.Sec == host.Mtim.Sec
		}
		return guest.Ino == host.Ino && guest.Size == host.Size && guest.Mtim == host.Mtim && guest.Ctim == host.Ctim && guest.Nlink == host.Nlink
	})
}

// await waits until something is so.
func (s *sandbox) await(what string, so func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("the mount does not show %s", what)
		}
	}
}
