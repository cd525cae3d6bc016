package warden_test

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

// The agent dials a foreign host over a socket, with its configuration from a file or standard input.
func TestDialsUnixSocket(t *testing.T) {
	bin := guestBinary(t)
	config, _ := json.Marshal(turnrpc.GuestConfig{SessionID: "sid", Capability: "cap", RepoDir: "/", Model: turnrpc.GuestModel{Name: "m"}})
	for _, from := range []string{"file", "-"} {
		t.Run(from, func(t *testing.T) {
			dir, err := os.MkdirTemp("/tmp", "msbw-") // a short path, for the socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			path := filepath.Join(dir, "rpc.sock")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			_ = os.Chmod(path, 0o600) // the agent's user could not open it; the warden does
			base, err := os.MkdirTemp("/var/lib", "msb-turn-test-")
			if err != nil {
				t.Fatal(err)
			}
			_ = os.Chmod(base, 0o755)
			defer os.RemoveAll(base)
			name := from
			cmd := exec.Command(bin)
			if from == "file" {
				name = filepath.Join(dir, "config")
				if err := os.WriteFile(name, append(config, make([]byte, 1000)...), 0o400); err != nil { // filled up like a disk
					t.Fatal(err)
				}
			} else {
				cmd.Stdin = strings.NewReader(string(config))
			}
			cmd.Args = []string{bin, "turn", "--rpc", "unix:" + path, "--config", name, "--state", base, "--image-id", "foreign"}
			var stderr strings.Builder
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			h := turntest.New(t, conn, turntest.Script{})
			if hello := h.Greeted(); hello.ImageID != "foreign" || hello.Capability != "cap" {
				t.Errorf("%+v", hello)
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

func TestUsage(t *testing.T) {
	bin := guestBinary(t)
	for _, args := range [][]string{
		{}, {"--rpc", "stdio", "--config", "x"}, {"--rpc", "unix:/x"}, {"--rpc", "stdio", "more"}, {"--what"},
	} {
		cmd := exec.Command(bin, append([]string{"turn"}, args...)...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "usage:") {
			t.Errorf("%v: %d, %s", args, cmd.ProcessState.ExitCode(), out)
		}
	}
	out, code := runAs(t, bin, 1000)
	if code != 1 || !strings.Contains(out, "as root") {
		t.Errorf("as an ordinary user: %d, %s", code, out)
	}
}
