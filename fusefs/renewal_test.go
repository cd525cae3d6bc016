package fusefs_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"msb/fusefs"
)

// serveFew lets clients of the agent socket at path through to the sandbox, each
// with a range of ids that is used up soon.
func serveFew(l net.Listener, path string, ids uint32) {
	for {
		near, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer near.Close()
			far, err := net.Dial("unix", path)
			if err != nil {
				return
			}
			defer far.Close()
			var prologue [8]byte
			if _, err := io.ReadFull(far, prologue[:]); err != nil {
				return
			}
			start := binary.BigEndian.Uint32(prologue[:])
			binary.BigEndian.PutUint32(prologue[4:], start+ids)
			if _, err := near.Write(prologue[:]); err != nil {
				return
			}
			go func() {
				io.Copy(far, near)
				far.Close()
			}()
			io.Copy(near, far)
		}()
	}
}

// A mount uses up the ids of one connection after the other, and no program
// notices: with each backend, through the relay and past it.
func TestIDsRunOut(t *testing.T) {
	for name, change := range map[string]func(*sandbox){
		"nodes": func(s *sandbox) { s.relayed = true }, "direct": func(*sandbox) {}, "stock": func(s *sandbox) { s.stock = true },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSandbox(t, func(s *sandbox) {
				change(s)
				s.few = 1000
				s.opts.EntryTimeout, s.opts.AttrTimeout = -1, -1 // every call asks the guest
			})
			held, err := os.Create(s.at("held"))
			must(t, err)
			defer held.Close()
			var work sync.WaitGroup
			for w := range 4 {
				work.Go(func() {
					for i := range 150 {
						name := s.at(fmt.Sprintf("f%d", w))
						want := []byte(fmt.Sprint(w, i))
						if err := os.WriteFile(name, want, 0o644); err != nil {
							t.Error(err)
							return
						}
						got, err := os.ReadFile(name)
						if err != nil || string(got) != string(want) {
							t.Errorf("%q, %v, want %q", got, err, want)
							return
						}
						if err := os.Rename(name, name+"x"); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			work.Wait()
			_, err = held.WriteString("still open")
			must(t, err)
			must(t, held.Close())
			wantFile(t, s.in("held"), []byte("still open"))
			must(t, fusefs.Unmount(s.dir))
		})
	}
}
