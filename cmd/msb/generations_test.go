package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"msb/agentclient/agenttest"
)

// deeds are what the client commands do, with the generation that each of them needs. Every one gets the socket of a
// sandbox, the sandbox's home and a place of its own on both sides.
var deeds = []struct {
	name  string
	needs int
	do    func(d deed) (out string, err error)
	want  string // what the output has in it
}{
	{"exec", 1, func(d deed) (string, error) { return d.msb("exec", "--socket", d.socket, "--", "echo", "hello") }, "hello"},
	{"exec with a directory that is missing", 1, func(d deed) (string, error) {
		out, err := d.msb("exec", "--socket", d.socket, "-w", "/no/such/directory", "--", "true")
		if err == nil {
			return out, fmt.Errorf("it ran: %s", out)
		}
		return out, nil
	}, "not"},
	{"exec -t", 1, func(d deed) (string, error) {
		return d.msb("exec", "--socket", d.socket, "-t", "--", "sh", "-c", "tty; echo TERM=$TERM")
	}, "/dev/pts/"},
	{"shell", 1, func(d deed) (string, error) {
		p := sit(d.t, d.home, nil, "shell", "--socket", d.socket)
		p.sees("$ ")
		p.types("echo he'r'e; exit 7\r")
		p.sees("here")
		if code := p.leaves(); code != 7 {
			return "", fmt.Errorf("exit code %d", code)
		}
		return "here", nil
	}, "here"},
	{"cp in and out", 2, func(d deed) (string, error) {
		data := bytes.Repeat([]byte(d.place), 100_000)
		if err := os.WriteFile(filepath.Join(d.dir, "in"), data, 0o640); err != nil {
			return "", err
		}
		if out, err := d.msb("cp", "--socket", d.socket, filepath.Join(d.dir, "in"), ":"+d.place); err != nil {
			return out, err
		}
		if out, err := d.msb("cp", "--socket", d.socket, ":"+d.place, filepath.Join(d.dir, "out")); err != nil {
			return out, err
		}
		if back, err := os.ReadFile(filepath.Join(d.dir, "out")); err != nil || !bytes.Equal(back, data) {
			return "", fmt.Errorf("%d bytes of %d came back: %w", len(back), len(data), err)
		}
		return d.msb("exec", "x", "--", "stat", "-c", "mode %a size %s", d.place)
	}, "mode 640 size"},
	{"cp of a tree", 2, func(d deed) (string, error) {
		tree := filepath.Join(d.dir, "tree", "sub")
		if err := os.MkdirAll(tree, 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(tree, "f"), []byte("leaf"), 0o644); err != nil {
			return "", err
		}
		if out, err := d.msb("cp", "--socket", d.socket, filepath.Join(d.dir, "tree"), ":"+d.place); err != nil {
			return out, err
		}
		return d.msb("cp", "--socket", d.socket, ":"+d.place+"/sub/f", "-")
	}, "leaf"},
	{"ping", 6, func(d deed) (string, error) { return d.msb("ping", "--socket", d.socket) }, "ms, generation"},
	{"touch", 6, func(d deed) (string, error) { return d.msb("touch", "--socket", d.socket) }, ""},
	{"forward", 4, func(d deed) (string, error) {
		out, err := d.msb("forward", "--socket", d.socket, "127.83.77.1:1:80", "bad")
		if err == nil || !strings.Contains(out, `"bad" is no port`) {
			return out, fmt.Errorf("a bad port: %w", err)
		}
		if d.older.Generation < 4 || d.older.Legacy {
			return d.msb("forward", "--socket", d.socket, "0:7000")
		}
		f := startForward(d.t, d.home, d.socket, "0:7000")
		connect(d.t, f.ports[0], d.place, d.place)
		return "", f.interrupt()
	}, ""},
	{"mount", 2, func(d deed) (string, error) {
		mnt := filepath.Join(d.dir, "mnt")
		if err := os.Mkdir(mnt, 0o755); err != nil {
			return "", err
		}
		if out, err := d.msb("mount", "--socket", d.socket, ":/home/dev", mnt); err != nil {
			return out, err
		}
		data := bytes.Repeat([]byte(d.place), 30_000)
		name := filepath.Base(d.place) + ".mounted"
		err := os.WriteFile(filepath.Join(mnt, name), data, 0o644)
		var back []byte
		if err == nil {
			back, err = os.ReadFile(filepath.Join(mnt, name))
		}
		if out, uerr := d.msb("umount", mnt); uerr != nil {
			return out, uerr
		}
		if err != nil || !bytes.Equal(back, data) {
			return "", fmt.Errorf("%d bytes of %d came back: %w", len(back), len(data), err)
		}
		return d.msb("exec", "x", "--", "stat", "-c", "size %s", name)
	}, "size"},
}

// deed is one command against one generation.
type deed struct {
	t      *testing.T
	home   string
	socket string
	dir    string // on the host
	place  string // in the sandbox
	older  agenttest.Older
}

// msb runs a command; what it printed on failure is part of the output.
func (d deed) msb(args ...string) (string, error) { return msb(d.t, d.home, args...) }

// TestGenerations gives every client command to sandboxes of every generation there has been: it works, or says which
// generation it needs and what brings a current agent.
func TestGenerations(t *testing.T) {
	home := sandboxHome(t)
	mustMSB(t, home, "exec", "x", "--", "sh", "-c", "nc -ll -p 7000 -e cat >/dev/null 2>&1 </dev/null &")
	up := agentSocket(t, home, "x")
	for generation := uint8(0); generation <= 9; generation++ {
		o := agenttest.Older{Generation: generation, Upstream: up}
		name := fmt.Sprintf("generation %d", generation)
		if generation == 0 {
			o.Generation, o.Legacy, name = 1, true, "before 0.5"
		}
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(home, fmt.Sprintf("g%d.sock", generation))
			serveOlder(t, o, socket)
			for i, x := range deeds {
				t.Run(x.name, func(t *testing.T) {
					if x.name == "mount" && !canMount() {
						t.Skip("no /dev/fuse here: msb mount needs FUSE")
					}
					d := deed{t: t, home: home, socket: socket, dir: t.TempDir(), place: fmt.Sprintf("/home/dev/g%d-%d", generation, i), older: o}
					out, err := x.do(d)
					if int(o.Generation) >= x.needs {
						if err != nil || !strings.Contains(out, x.want) {
							t.Errorf("%v: %q; want %q", err, out, x.want)
						}
						return
					}
					say := fmt.Sprintf("needs agent generation %d, this sandbox speaks generation %d: restart the sandbox", x.needs, o.Generation)
					if err == nil || !strings.Contains(out, say) {
						t.Errorf("%v: %q; want %q", err, out, say)
					}
				})
			}
		})
	}
}

// serveOlder makes a sandbox look older at another socket.
func serveOlder(t *testing.T, o agenttest.Older, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	o.Complain = t.Errorf
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); o.Serve(ctx, l) }()
	t.Cleanup(func() { stop(); <-served })
}

func agentSocket(t *testing.T, home, name string) string {
	t.Helper()
	var v sandboxView
	if err := json.Unmarshal([]byte(mustMSB(t, home, "inspect", name, "--json")), &v); err != nil {
		t.Fatal(err)
	}
	return v.AgentSocket
}

func canMount() bool {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	f.Close()
	return true
}
