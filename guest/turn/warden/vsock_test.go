package warden_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

// listenVsock listens on a vsock port of this machine and skips the test where the machine cannot reach itself so: that
// needs the kernel's vsock_loopback.
func listenVsock(t *testing.T) (fd int, port uint32) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skip("no vsock here:", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: unix.VMADDR_PORT_ANY}); err != nil {
		t.Skip("no vsock here:", err)
	}
	name, err := unix.Getsockname(fd)
	if err == nil {
		err = unix.Listen(fd, 8)
	}
	if err != nil {
		t.Fatal(err)
	}
	port = name.(*unix.SockaddrVM).Port
	try, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(try)
	err = unix.Connect(try, &unix.SockaddrVM{CID: unix.VMADDR_CID_LOCAL, Port: port})
	if errors.Is(err, unix.EINPROGRESS) {
		p := []unix.PollFd{{Fd: int32(try), Events: unix.POLLOUT}}
		if n, _ := unix.Poll(p, 5000); n == 1 {
			var code int
			if code, err = unix.GetsockoptInt(try, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
				err = unix.Errno(code)
			}
		}
	}
	if err != nil {
		t.Skip("this machine does not reach itself over vsock, which needs vsock_loopback:", err)
	}
	c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(c)
	return fd, port
}

// A whole turn of an agent that dialled a foreign host over vsock, as in a machine of another program.
func TestDialsVsock(t *testing.T) {
	bin := guestBinary(t)
	l, port := listenVsock(t)
	base, err := os.MkdirTemp("/var/lib", "msb-turn-test-")
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(base, 0o755)
	defer os.RemoveAll(base)
	config, _ := json.Marshal(turnrpc.GuestConfig{SessionID: "sid", Capability: "cap", RepoDir: "/usr", VsockPort: port, Model: turnrpc.GuestModel{Name: "m"}})
	for _, rpc := range []string{fmt.Sprintf("vsock:%d:%d", unix.VMADDR_CID_LOCAL, port), fmt.Sprintf("vsock:%d", unix.VMADDR_CID_LOCAL)} {
		t.Run(rpc, func(t *testing.T) {
			cmd := exec.Command(bin, "turn", "--rpc", rpc, "--config", "-", "--state", base)
			cmd.Stdin = strings.NewReader(string(config))
			var stderr strings.Builder
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			late := time.AfterFunc(2*turntest.Patience, func() { _ = cmd.Process.Kill() })
			defer late.Stop()
			fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if err != nil {
				t.Fatal(err)
			}
			result := ""
			h := turntest.New(t, os.NewFile(uintptr(fd), "vsock"), turntest.Script{Approve: allow, Model: func(n int, r turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
				if n == 0 {
					return turntest.Use(turntest.Command("id -un"), [2]string{"list_files", `{"path":"."}`})
				}
				result = turntest.Last(r)
				return turntest.Say(strings.Repeat("words ", 50_000)) // more than one packet
			}})
			events, err := h.Start(turnrpc.UserTurn{Text: "go", RichEvents: true}).Wait()
			if err != nil {
				t.Fatalf("%v: %s", err, &stderr)
			}
			if kinds := turntest.Kinds(events); !strings.HasPrefix(kinds, "approval:pending approval:allowed tool:ok tool:ok text") || !strings.HasSuffix(kinds, "result done") || !strings.Contains(result, "bin") {
				t.Errorf("%s, %q", kinds, result)
			}
			if err := h.Call(turnrpc.MethodShutdown, nil, nil); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, &stderr)
			}
		})
	}
}
