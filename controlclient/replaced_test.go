package controlclient

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"msb/protocol/control"
)

// known makes the listener whoever the test says.
type known struct {
	mu  sync.Mutex
	who Identity
	err error
}

func (k *known) set(who Identity, err error) {
	k.mu.Lock()
	k.who, k.err = who, err
	k.mu.Unlock()
}

func (k *known) option() Option {
	return func(c *config) {
		c.identify = func(net.Conn) (Identity, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.who, k.err
		}
	}
}

// parent is a process that lives as long as the test.
func parent(t *testing.T) Identity {
	t.Helper()
	start, err := startOf(os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	return Identity{os.Getppid(), start}
}

// gone is a process that has ended.
func gone(t *testing.T) Identity {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read x")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startOf(cmd.Process.Pid)
	stdin.Close()
	cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return Identity{cmd.Process.Pid, start}
}

// TestReplacedRuntimeInJSON: the mode is used again only as long as the very process that was asked for it listens.
func TestReplacedRuntimeInJSON(t *testing.T) {
	const asksMode, asksMemory = `{"op":"capabilities"}`, `{"op":"memory_state"}`
	for _, tt := range []struct {
		name        string
		first, then Identity
		err         error // nobody can tell who listens
		want        string
	}{
		{"the same", self(t), self(t), nil, strings.Join([]string{asksMode, asksMemory, asksMemory}, " ")},
		{"another one listens", self(t), parent(t), nil, strings.Join([]string{asksMode, asksMemory, asksMode, asksMemory}, " ")},
		{"it has ended", gone(t), self(t), nil, strings.Join([]string{asksMode, asksMemory, asksMode, asksMemory}, " ")},
		{"its number is another process's", Identity{os.Getpid(), 1}, Identity{os.Getpid(), 1}, nil, strings.Join([]string{asksMode, asksMemory, asksMode, asksMemory}, " ")},
		{"unknown", Identity{}, Identity{}, errors.New("not on this system"), strings.Join([]string{asksMode, asksMemory, asksMode, asksMemory}, " ")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &lines{answers: map[string]string{"capabilities": legacy, "memory_state": `{"ok":true,"memory":{"boot_mib":1,"target_mib":1,"current_mib":1,"max_mib":1}}`}}
			r := listen(t, l.serve)
			k := &known{who: tt.first, err: tt.err}
			c := Connect(r.path, k.option())
			defer c.Close()
			if _, err := c.MemoryState(t.Context()); err != nil {
				t.Fatal(err)
			}
			k.set(tt.then, tt.err)
			if _, err := c.MemoryState(t.Context()); err != nil {
				t.Fatal(err)
			}
			if l.ops() != tt.want {
				t.Errorf("asked\n%s\nwant\n%s", l.ops(), tt.want)
			}
		})
	}
}

// TestReplacedRuntimeFramed: a session whose runtime has ended is not used again, though its connection is still there.
func TestReplacedRuntimeFramed(t *testing.T) {
	all := vectors(t)
	var mu sync.Mutex
	hellos := 0
	r := listen(t, func(_ int, c net.Conn) {
		b := bufio.NewReader(c)
		if first, _ := b.Peek(1); len(first) == 0 || first[0] != 0 {
			b.ReadString('\n')
			fmt.Fprintln(c, withCBOR)
			return
		}
		readFrame(b)
		mu.Lock()
		hellos++
		mu.Unlock()
		c.Write(all["welcome"].raw)
		for {
			raw, err := readFrame(b)
			if err != nil {
				return
			}
			c.Write(withID(all["memory_state"].raw, raw[4:8]))
		}
	})
	ask := func(c *Connection, want int) {
		t.Helper()
		if _, err := c.SetMemoryTarget(t.Context(), 1); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if hellos != want {
			t.Errorf("%d sessions, want %d", hellos, want)
		}
	}
	k := &known{who: gone(t)}
	c := Connect(r.path, k.option())
	defer c.Close()
	ask(c, 1)
	k.set(self(t), nil)
	ask(c, 2)
	ask(c, 2)

	// Replaced between discovery and handshake: neither is used.
	flips := &known{who: self(t)}
	d := Connect(r.path, flips.option(), func(cfg *config) {
		inner := cfg.identify
		cfg.identify = func(conn net.Conn) (Identity, error) {
			who, err := inner(conn)
			flips.set(parent(t), nil)
			return who, err
		}
	})
	defer d.Close()
	if _, err := d.SetMemoryTarget(t.Context(), 1); !errors.Is(err, ErrRuntimeChanged) {
		t.Errorf("got %v", err)
	}
	var unknown *OutcomeUnknownError
	var refused *control.Error
	if _, err := d.MemoryState(t.Context()); errors.As(err, &unknown) || errors.As(err, &refused) || err != nil {
		t.Errorf("a later caller: %v", err)
	}
}
