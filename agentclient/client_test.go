package agentclient

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"testing"

	"msb/protocol/agent"
)

// Every operation against a guest of every generation: it works, or it says
// which generation it needs and nothing was sent.
func TestGenerations(t *testing.T) {
	type setup struct {
		gen    uint8
		legacy bool
	}
	var setups []setup
	for g := uint8(1); g <= 10; g++ {
		setups = append(setups, setup{g, false})
	}
	setups = append(setups, setup{1, true}, setup{3, true})
	for _, s := range setups {
		t.Run(fmt.Sprintf("gen%d legacy=%v", s.gen, s.legacy), func(t *testing.T) {
			c, p := newPeer(t, s.gen, func(p *peer) {
				p.legacy = s.legacy
				if s.legacy {
					p.end = p.start - 1 + legacyRange
				}
			})
			gate := min(s.gen, agent.Generation)
			if s.legacy {
				gate = 1
			}
			if got := c.Ready().NegotiatedVersion; got != gate {
				t.Fatalf("negotiated generation %d, want %d", got, gate)
			}
			for _, typ := range agent.Types() {
				if got, want := c.Ready().Supports(typ), typ.Since() <= gate; got != want {
					t.Errorf("Supports(%s) = %v", typ, got)
				}
			}
			check := func(name string, needs uint8, err error) {
				t.Helper()
				var old *UnsupportedOperationError
				switch {
				case gate >= needs && err != nil:
					t.Errorf("%s: %v", name, err)
				case gate < needs && (!errors.As(err, &old) || old.Needs != needs):
					t.Errorf("%s: error %v, want a need of generation %d", name, err, needs)
				}
			}
			ctx := within(t)
			_, err := c.Ping(ctx)
			check("ping", 6, err)
			_, err = c.Touch(ctx)
			check("touch", 6, err)
			_, err = c.FS().Stat(ctx, "/missing", true)
			if gate >= 2 && errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			check("stat", 2, err)
			tc, err := c.DialTCP(ctx, "echo", 7)
			check("tcp", 4, err)
			if err == nil {
				echo(t, tc, pattern(300<<10))
			}
			f, err := c.FS().OpenFile(ctx, "/f", agent.OpenOptions{Read: true, Write: true, Create: true})
			check("open", 2, err)
			if err == nil {
				fileRoundTrip(t, f, 5, 100, 70<<10, 300<<10)
				if s.gen == 7 || s.gen == 9 {
					f, _ := c.FS().OpenFile(ctx, "/big", agent.OpenOptions{Read: true, Write: true, Create: true})
					fileRoundTrip(t, f, 9<<20)
				}
			}
			e, err := c.Exec(ctx, ExecSpec{Cmd: "cat"})
			check("exec", 1, err)
			e.Stdin().Write([]byte("hello"))
			e.Stdin().Close()
			out, err := io.ReadAll(e.Stdout())
			if string(out) != "hello" || err != nil {
				t.Errorf("cat said %q, %v", out, err)
			}
			if code, err := e.Wait(); code != 0 || err != nil {
				t.Errorf("cat ended with %d, %v", code, err)
			}
			p.mu.Lock()
			if got := p.bulk > 0; got != (gate >= 8) {
				t.Errorf("raw bulk used: %v", got)
			}
			p.mu.Unlock()
			if err := c.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

func echo(t *testing.T, conn *TCPConn, data []byte) {
	t.Helper()
	go func() {
		conn.Write(data)
		conn.CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("echo: %d bytes of %d, %v", len(got), len(data), err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

func fileRoundTrip(t *testing.T, f *File, sizes ...int) {
	t.Helper()
	ctx := within(t)
	for _, n := range sizes {
		data := pattern(n)
		if m, err := f.WriteAt(ctx, data, 3); m != n || err != nil {
			t.Fatalf("WriteAt %d: %d, %v", n, m, err)
		}
		got := make([]byte, n)
		if m, err := f.ReadAt(ctx, got, 3); m != n || err != nil || !bytes.Equal(got, data) {
			t.Fatalf("ReadAt %d: %d, %v", n, m, err)
		}
		got = make([]byte, n+10)
		if m, err := f.ReadAt(ctx, got, 3); m != n || !errors.Is(err, io.EOF) {
			t.Fatalf("ReadAt past the end, %d: %d, %v", n, m, err)
		}
		if m, err := f.Upload(ctx, bytes.NewReader(data), 5); m != int64(n) || err != nil {
			t.Fatalf("Upload %d: %d, %v", n, m, err)
		}
		var b bytes.Buffer
		if m, err := f.Download(ctx, &b, 5, nil); m != int64(n) || err != nil || !bytes.Equal(b.Bytes(), data) {
			t.Fatalf("Download %d: %d, %v", n, m, err)
		}
		b.Reset()
		part := uint64(n / 2)
		if m, err := f.Download(ctx, &b, 5, &part); m != int64(part) || err != nil || !bytes.Equal(b.Bytes(), data[:part]) {
			t.Fatalf("Download half of %d: %d, %v", n, m, err)
		}
	}
	if err := f.Close(ctx); err != nil {
		t.Error(err)
	}
}
