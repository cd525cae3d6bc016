package session

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"msb/agentclient"
	"msb/cmd/msb/terminal"
	guest "msb/guest/agent"
	"msb/guest/exec"
	"msb/protocol/agent"
	"msb/vmm/relay"
)

var reaper *exec.Reaper

func TestMain(m *testing.M) {
	exec.LimitedMain()
	exec.HideDescriptors()
	reaper = exec.NewReaper()
	os.Exit(m.Run())
}

// dial connects to a guest agent behind a relay that run in this process: commands run on this host.
func dial(t *testing.T) *agentclient.Client {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guest agent starts commands as other users, which needs root; the scripts of cmd/msb run commands in real sandboxes")
	}
	hostPort, guestPort := portPair(t)
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { _ = guest.Serve(ctx, guest.Ports{Control: guestPort}, guest.Machine{}, reaper) })
	booted, err := relay.Boot(within(t), hostPort, nil, agent.BootstrapPayload{SecurityProfile: agent.SecurityDefault})
	if err != nil {
		t.Fatal(err)
	}
	r := relay.New(booted, relay.Options{})
	dir, err := os.MkdirTemp("/tmp", "msbs-") // a short path, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "agent.sock")
	l, err := relay.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ended.Go(func() { _ = r.Serve(l) })
	t.Cleanup(func() {
		l.Close()
		r.Close()
		cancel()
		ended.Wait()
	})
	c, err := agentclient.Dial(within(t), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func portPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var c [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "port")
		c[i], err = net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return c[0], c[1]
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func shell(script string) agentclient.ExecSpec {
	return agentclient.ExecSpec{Cmd: "/bin/sh", Args: []string{"-c", script}}
}

func TestRun(t *testing.T) {
	c := dial(t)
	login, loginArgs := LoginShell()
	for _, tc := range []struct {
		name     string
		opt      Options
		in       string
		want     Result
		out, err string
	}{
		{"streams and exit code", Options{Spec: shell("cat; echo oops >&2; exit 3")}, "typed", Result{Code: 3}, "typed", "oops\n"},
		{"any bytes", Options{Spec: shell("cat")}, "\x00\xff\r\n\x1b[31m", Result{}, "\x00\xff\r\n\x1b[31m", ""},
		{"no input", Options{Spec: shell("cat; echo end"), NoStdin: true}, "typed", Result{}, "end\n", ""},
		{"input that nobody reads", Options{Spec: shell("exec <&-; echo end")}, strings.Repeat("x", 1<<20), Result{}, "end\n", ""},
		{"killed by a signal", Options{Spec: shell("kill -TERM $$")}, "", Result{Code: -1, Signal: syscall.SIGTERM}, "", ""},
		{"out of time", Options{Spec: shell("exec sleep 60"), Timeout: 20 * time.Millisecond}, "", Result{Code: -1, Signal: syscall.SIGKILL, TimedOut: true}, "", ""},
		{"done in time", Options{Spec: shell("exit 4"), Timeout: time.Minute}, "", Result{Code: 4}, "", ""},
		{"the login shell", Options{Spec: agentclient.ExecSpec{Cmd: login, Args: loginArgs}}, "[ -x \"$SHELL\" ] && echo shell; exit 5\n", Result{Code: 5}, "shell\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			got, err := Run(within(t), c, terminal.Test(strings.NewReader(tc.in), &out, &errs), tc.opt)
			if err != nil || got != tc.want {
				t.Errorf("%+v, %v; want %+v", got, err, tc.want)
			}
			if out.String() != tc.out || !strings.HasSuffix(errs.String(), tc.err) {
				t.Errorf("output %q, errors %q; want %q and %q", out.String(), errs.String(), tc.out, tc.err)
			}
		})
	}
}

func TestRunOfNothing(t *testing.T) {
	s := terminal.Test(strings.NewReader(""), io.Discard, io.Discard)
	got, err := Run(within(t), dial(t), s, Options{Spec: agentclient.ExecSpec{Cmd: "/no/such/command"}})
	if err == nil || got.Code != -1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// A command on a terminal has one, with a TERM and one output, and sees the end of an input that is none.
func TestRunTTY(t *testing.T) {
	var out bytes.Buffer
	spec := shell(`[ -t 0 ] && [ -t 1 ] && [ -n "$TERM" ] && echo terminal; cat; echo end; exit 6`)
	spec.TTY = true
	got, err := Run(within(t), dial(t), terminal.Test(strings.NewReader("typed\n"), &out, io.Discard), Options{Spec: spec})
	if err != nil || got.Code != 6 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, want := range []string{"terminal\r\n", "typed\r\n", "end\r\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}

// onWrite is an output that does something when it is first written to.
type onWrite struct {
	bytes.Buffer
	once sync.Once
	do   func()
	err  error
}

func (w *onWrite) Write(p []byte) (int, error) {
	w.once.Do(w.do)
	if w.err != nil {
		return 0, w.err
	}
	return w.Buffer.Write(p)
}

func TestSignalsReachTheCommand(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"USR1": syscall.SIGUSR1, "INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP} {
		t.Run(name, func(t *testing.T) {
			out := &onWrite{do: func() { _ = syscall.Kill(os.Getpid(), sig) }}
			script := "trap 'echo caught; exit 7' " + name + "; echo ready; while :; do sleep 0.01; done"
			got, err := Run(within(t), dial(t), terminal.Test(strings.NewReader(""), out, io.Discard), Options{Spec: shell(script)})
			if err != nil || got.Code != 7 || out.String() != "ready\ncaught\n" {
				t.Errorf("%+v, %v, output %q", got, err, out.String())
			}
		})
	}
}

// When nobody reads our output any more, the command is told so and ends.
func TestOutputGone(t *testing.T) {
	out := &onWrite{do: func() {}, err: syscall.EPIPE}
	_, err := Run(within(t), dial(t), terminal.Test(strings.NewReader(""), out, io.Discard), Options{Spec: shell("while :; do echo line; done")})
	if !errors.Is(err, ErrOutput) || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("error %v", err)
	}
}

func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(within(t))
	out := &onWrite{do: cancel}
	_, err := Run(ctx, dial(t), terminal.Test(strings.NewReader(""), out, io.Discard), Options{Spec: shell("echo ready; exec sleep 60")})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// A name that is no file name is never looked for in the guest, nor passed on.
func TestGuestTerm(t *testing.T) {
	fs := dial(t).FS()
	for _, own := range []string{"", "dumb", "../../etc/passwd", ".", "a b", "x=y", "x\ny", strings.Repeat("x", 64)} {
		if got := guestTerm(within(t), fs, own); got == own || got == "" {
			t.Errorf("%q became %q", own, got)
		}
	}
	if got := guestTerm(within(t), fs, "no-such-terminal"); got == "no-such-terminal" {
		t.Error("a terminal that the guest does not know was passed on")
	}
}
