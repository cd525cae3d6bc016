package turn

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/agentclient"
	"msb/guest/agent"
	guestexec "msb/guest/exec"
	wire "msb/protocol/agent"
	"msb/protocol/turnrpc"
	"msb/vmm/relay"
)

// serveSandbox is the guest's agent behind a relay, until its stdin is closed.
// It is a process of its own: the agent reaps every child it sees.
func serveSandbox(socket string) {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "sandbox:", err)
			os.Exit(3)
		}
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(err)
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "port")
		ends[i], err = net.FileConn(f)
		check(err)
		f.Close()
	}
	go agent.Serve(context.Background(), agent.Ports{Control: ends[0]}, agent.Machine{}, guestexec.NewReaper())
	g, err := relay.Boot(context.Background(), ends[1], nil, wire.BootstrapPayload{SecurityProfile: wire.SecurityDefault})
	check(err)
	l, err := net.Listen("unix", socket)
	check(err)
	go relay.New(g, relay.Options{}).Serve(l)
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
}

// serveTurnAgent is a turn agent on stdin and stdout. It tells in its history
// what of the secret was in its arguments and environment.
func serveTurnAgent() {
	in := bufio.NewReader(os.Stdin)
	line, _ := in.ReadBytes('\n')
	var c turnrpc.GuestConfig
	if err := json.Unmarshal(line, &c); err != nil {
		fmt.Fprintln(os.Stderr, "no configuration:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "said on standard error")
	seen := strings.Contains(strings.Join(append(os.Environ(), os.Args...), " "), c.Capability)
	say := func(f *turnrpc.Frame) {
		b, _ := turnrpc.Append(nil, f)
		os.Stdout.Write(b)
	}
	f, _ := turnrpc.Call(turnrpc.HelloID, turnrpc.MethodHello, turnrpc.Hello{
		SessionID: c.SessionID, Capability: c.Capability, ImageID: "i", Protocol: 4, GuestReady: true,
		History: []turnrpc.AgentEvent{{Kind: "text", Text: fmt.Sprint(strings.Join(os.Args[1:], " "), " ", seen)}},
	})
	say(f)
	turnrpc.Read(in)
	for {
		f, err := turnrpc.Read(in)
		if err != nil {
			time.Sleep(time.Hour) // it has to be killed
		}
		r, _ := turnrpc.Respond(f.ID, turnrpc.OK{OK: true})
		say(r)
	}
}

// A turn agent that is a command in a sandbox.
func TestStdio(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the guest's agent changes users, which needs root")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "agent.sock")
	sandbox := exec.Command(os.Args[0])
	sandbox.Env = append(os.Environ(), "TEST_SANDBOX="+socket)
	sandbox.Stderr = os.Stderr
	stdin, err := sandbox.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := sandbox.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sandbox.Start(); err != nil {
		t.Fatal(err)
	}
	defer sandbox.Wait()
	defer stdin.Close()
	if _, err := io.ReadFull(stdout, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	c, err := agentclient.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	config := turnrpc.GuestConfig{SessionID: testID, Capability: newCapability()}
	at := Stdio{Path: os.Args[0], User: "root"}
	rwc, err := at.Dial(t.Context(), c, config)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), rwc, Options{ID: testID, Capability: config.Capability})
	if err != nil {
		t.Fatal(err)
	}
	if h := s.Greeted(); len(h) != 1 || h[0].Text != "turn --rpc stdio false" {
		t.Errorf("%+v", h)
	}
	if err := s.Quiesce(t.Context()); err != nil {
		t.Error(err)
	}
	pid := rwc.(*stdio).e.PID()
	s.Close()
	select {
	case <-rwc.(*stdio).e.Done():
	default:
		t.Error("the agent still runs")
	}
	for deadline := time.Now().Add(time.Minute); !errors.Is(unix.Kill(int(pid), 0), unix.ESRCH); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d was not killed", pid)
		}
	}
	if _, err := (Stdio{Path: "/does/not/exist", User: "root"}).Dial(t.Context(), c, config); err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("%v", err)
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rpc.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Error(err)
			return
		}
		g := &guest{t: t, c: c}
		g.say(hello(4, ""))
		g.frame()
		io.Copy(io.Discard, c)
		c.Close()
	}()
	rwc, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), rwc, options())
	if err != nil {
		t.Fatal(err)
	}
	s.conn.Close()
	s.Close()
	<-done
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := Listen(path); err == nil {
		t.Error("a socket that is served was taken over")
	}
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o600)
	if _, err := Listen(file); err == nil {
		t.Error("a file was replaced")
	}
}
