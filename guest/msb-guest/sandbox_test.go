package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// The tests of this package run the real binary in the namespaces of the process engine, on a real ext4 image that the
// same binary unpacked. They need root, mkfs.ext4 and a static busybox.

var (
	buildOnce sync.Once
	builtPath string
	buildErr  error
	scratch   string
)

func TestMain(m *testing.M) {
	syscall.Umask(0o022)
	code := m.Run()
	if scratch != "" {
		os.RemoveAll(scratch)
	}
	os.Exit(code)
}

// guestBinary builds msb-guest once.
func guestBinary(t testing.TB) string {
	t.Helper()
	buildOnce.Do(func() {
		if scratch, buildErr = os.MkdirTemp("", "msb-guest-test-"); buildErr != nil {
			return
		}
		builtPath = filepath.Join(scratch, "msb-guest")
		c := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", builtPath, ".")
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("build the guest: %w\n%s", err, out)
		}
	})
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return builtPath
}

func needTools(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes namespaces and mounts")
	}
	for _, tool := range []string{"mkfs.ext4", "busybox"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
}

// applets are the commands of the test's root file system.
const applets = `ash cat chmod chown cp cut date dd df dmesg du echo env false find free getfattr grep head hostname id ip
	kill ln ls md5sum mkdir mkfifo mknod mount mv nc netstat ping printenv ps pwd rm rmdir sed seq setsid sh sleep sort
	stat stty sync tail tee test touch tr true tty ulimit umount uname uptime vi wc which yes`

// busyboxTar is the archive of a small root file system with a user alice.
func busyboxTar(t testing.TB) []byte {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Skipf("needs a busybox for its root file system: apt-get install busybox-static: %v", err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, content string) {
		h.Size = int64(len(content))
		h.ModTime = time.Unix(1_700_000_000, 0)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"bin", "etc", "data", "home", "root"} {
		add(tar.Header{Name: d + "/", Typeflag: tar.TypeDir, Mode: 0o755}, "")
	}
	add(tar.Header{Name: "home/alice/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 1000, Gid: 1000}, "")
	add(tar.Header{Name: "bin/busybox", Mode: 0o755}, string(program))
	for applet := range strings.FieldsSeq(applets) {
		add(tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, "")
	}
	add(tar.Header{Name: "etc/passwd", Mode: 0o644}, "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n")
	add(tar.Header{Name: "etc/group", Mode: 0o644}, "root:x:0:\nalice:x:1000:\n")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// newImage makes an empty ext4 image.
func newImage(t testing.TB, mib int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", path, fmt.Sprintf("%dm", mib)).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	return path
}

// unpack runs the unpack mode and returns its one line.
func unpack(t testing.TB, image string, archive io.Reader) string {
	t.Helper()
	c := exec.Command(guestBinary(t), "unpack", "--device", image)
	c.Stdin = archive
	c.Stderr = os.Stderr
	out, _ := c.Output()
	return string(out)
}

// busyboxImage makes an image of the small root file system.
func busyboxImage(t testing.TB) string {
	t.Helper()
	needTools(t)
	path := newImage(t, 48)
	if got := unpack(t, path, bytes.NewReader(busyboxTar(t))); got != "ok\n" {
		t.Fatalf("unpack: %s", got)
	}
	return path
}

// message is a frame from the guest, opened.
type message struct {
	id    uint32
	flags uint8
	t     agent.Type
	v     uint8
	p     []byte
	bulk  *frame.Bulk
	lease *frame.Lease
}

func (m message) String() string {
	switch {
	case m.bulk != nil:
		return fmt.Sprintf("%d bulk(%d,%d,@%d,%d bytes)", m.id, m.bulk.Kind, m.bulk.Flow, m.bulk.Offset, len(m.bulk.Payload))
	case m.lease != nil:
		return fmt.Sprintf("lease %d", m.lease.Event)
	}
	return fmt.Sprintf("%d %s %.200q", m.id, m.t, m.p)
}

// sandbox is a running guest and the host's side of its ports.
type sandbox struct {
	t       testing.TB
	cmd     *exec.Cmd
	control io.ReadWriteCloser
	bulk    io.ReadWriteCloser
	console bytes.Buffer
	loop    *os.File
	exited  chan struct{}

	mu     sync.Mutex
	cond   sync.Cond
	got    []message
	closed error
}

// pair makes a stream like a port's: ours, theirs.
func pair(t testing.TB) (*os.File, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
}

// start runs a guest on an image; the caller does the handshake.
func start(t testing.TB, image string, dual bool) *sandbox {
	t.Helper()
	s := &sandbox{t: t, exited: make(chan struct{})}
	s.cond.L = &s.mu
	s.loop = attach(t, image)
	s.cmd = exec.Command(guestBinary(t), "ns", "--control-fd", "3", "--device", s.loop.Name())
	ours, theirs := pair(t)
	s.control = ours
	s.cmd.ExtraFiles = []*os.File{theirs}
	if dual {
		ours, theirs := pair(t)
		s.bulk = ours
		s.cmd.Args = append(s.cmd.Args, "--bulk-fd", "4")
		s.cmd.ExtraFiles = append(s.cmd.ExtraFiles, theirs)
	}
	s.cmd.Env = []string{"PATH=/usr/bin:/bin"}
	s.cmd.Stdout, s.cmd.Stderr = &s.console, &s.console
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS |
		syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET | syscall.CLONE_NEWCGROUP}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range s.cmd.ExtraFiles {
		f.Close()
	}
	go func() { _ = s.cmd.Wait(); close(s.exited) }()
	go s.read()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.exited
		s.control.Close()
		if s.bulk != nil {
			s.bulk.Close()
		}
		s.loop.Close()
		if t.Failed() {
			t.Logf("console:\n%s", s.console.String())
		}
	})
	return s
}

// attach makes a loop device that goes when it is not used any more.
func attach(t testing.TB, image string) *os.File {
	t.Helper()
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs loop devices: %v", err)
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(f.Fd())}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	for range 64 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Skipf("needs loop devices: %v", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			t.Skipf("needs loop devices: %v", err)
		}
		if err = unix.IoctlLoopConfigure(int(loop.Fd()), &config); err == nil {
			return loop
		}
		loop.Close()
	}
	t.Fatal("no loop device stays free")
	return nil
}

func (s *sandbox) read() {
	r := frame.NewReader(s.control)
	for {
		f, err := r.Next()
		s.mu.Lock()
		if err != nil {
			s.closed = err
			s.cond.Broadcast()
			s.mu.Unlock()
			return
		}
		s.got = append(s.got, open(f))
		s.cond.Broadcast()
		s.mu.Unlock()
	}
}

func open(f frame.Frame) message {
	m := message{id: f.ID, flags: f.Flags}
	switch {
	case f.Flags == frame.FlagBulk:
		if rec, err := frame.ParseBulk(f); err == nil {
			rec.Payload = bytes.Clone(rec.Payload)
			m.bulk = &rec
		}
	case frame.IsLease(f):
		if l, err := frame.ParseLease(f); err == nil {
			m.lease = &l
		}
	default:
		if env, err := agent.ParseEnvelope(f.Body); err == nil {
			m.v, m.p = env.V, bytes.Clone(env.P)
			m.t, _ = env.Type()
		}
	}
	return m
}

func (s *sandbox) write(raw []byte) {
	s.t.Helper()
	if _, err := s.control.Write(raw); err != nil {
		s.t.Fatalf("write to the guest: %v", err)
	}
}

func (s *sandbox) send(id uint32, t agent.Type, payload any) {
	s.t.Helper()
	raw, err := agent.AppendFrame(nil, id, t, agent.Generation, payload)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(raw)
}

// await waits until the guest has sent a message that fits, at or after position from, and returns it and the position
// behind it.
func (s *sandbox) await(from int, what string, fits func(message) bool) (message, int) {
	s.t.Helper()
	timeout := false
	timer := time.AfterFunc(time.Minute, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		timeout = true
		s.cond.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := from; ; {
		for ; i < len(s.got); i++ {
			if fits(s.got[i]) {
				return s.got[i], i + 1
			}
		}
		if timeout || s.closed != nil {
			s.t.Fatalf("no %s (port: %v); got %v\nconsole: %s", what, s.closed, s.got[from:], s.console.String())
		}
		s.cond.Wait()
	}
}

func (s *sandbox) awaitType(id uint32, t agent.Type) message {
	s.t.Helper()
	m, _ := s.await(0, t.String(), func(m message) bool { return m.id == id && m.t == t })
	return m
}

// terminal waits for the last message of an id.
func (s *sandbox) terminal(id uint32) message {
	s.t.Helper()
	m, _ := s.await(0, "terminal message", func(m message) bool { return m.id == id && m.flags == frame.FlagTerminal })
	return m
}

// all returns what has come for an id.
func (s *sandbox) all(id uint32) []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	var mine []message
	for _, m := range s.got {
		if m.id == id && m.lease == nil {
			mine = append(mine, m)
		}
	}
	return mine
}

func (s *sandbox) output(id uint32) string {
	var b strings.Builder
	for _, m := range s.all(id) {
		if m.t == agent.ExecStdout {
			var d agent.Data
			if err := agent.DecodePayload(m.p, &d); err != nil {
				s.t.Fatal(err)
			}
			b.Write(d.Data)
		}
	}
	return b.String()
}

func decode[P any](t testing.TB, m message) P {
	t.Helper()
	var p P
	if err := agent.DecodePayload(m.p, &p); err != nil {
		t.Fatalf("%v: %v", m, err)
	}
	return p
}

// up starts a guest and brings it to ready.
func up(t testing.TB, b agent.BootstrapPayload) *sandbox {
	t.Helper()
	s := start(t, busyboxImage(t), false)
	s.handshake(b)
	return s
}

func (s *sandbox) handshake(b agent.BootstrapPayload) {
	s.t.Helper()
	if b.SecurityProfile == "" {
		b.SecurityProfile = agent.SecurityDefault
	}
	if b.BlockRoot == nil {
		b.BlockRoot = &agent.BlockRoot{Kind: agent.RootDiskImage, Device: "/dev/vda", FSType: "ext4"}
	}
	s.send(0, agent.Bootstrap, b)
	s.awaitType(0, agent.InitResolved)
	s.send(0, agent.InitAck, agent.Empty{})
	if s.bulk != nil {
		var hello [frame.BindSize]byte
		if _, err := io.ReadFull(s.bulk, hello[:]); err != nil {
			s.t.Fatal(err)
		}
		id, err := frame.ParseBindHello(hello[:])
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := s.bulk.Write(frame.BindReply(id)); err != nil {
			s.t.Fatal(err)
		}
	}
	s.awaitType(0, agent.Ready)
}

// run executes a command and returns its output and code.
func (s *sandbox) run(id uint32, r agent.ExecRequestPayload) (string, int32) {
	s.t.Helper()
	s.send(id, agent.ExecRequest, r)
	m := s.terminal(id)
	if m.t != agent.ExecExited {
		s.t.Fatalf("%v", m)
	}
	return s.output(id), decode[agent.ExecExitedPayload](s.t, m).Code
}

func sh(script string) agent.ExecRequestPayload {
	return agent.ExecRequestPayload{Cmd: "sh", Args: []string{"-c", script}}
}

// shutdown ends the guest in order and checks that it did.
func (s *sandbox) shutdown() {
	s.t.Helper()
	s.send(0, agent.Shutdown, nil)
	select {
	case <-s.exited:
	case <-time.After(time.Minute):
		s.t.Fatalf("the guest did not end\nconsole: %s", s.console.String())
	}
	if !s.cmd.ProcessState.Success() {
		s.t.Fatalf("the guest ended with %v\nconsole: %s", s.cmd.ProcessState, s.console.String())
	}
}
