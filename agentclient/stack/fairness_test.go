package stack

import (
	"bytes"
	"io"
	"path/filepath"
	"sync"
	"testing"

	"msb/agentclient"
	"msb/protocol/agent"
)

// Clients that feed commands which never read do not hold up one whose command reads, nor one that writes a file.
func TestUnreadInput(t *testing.T) {
	both(t, func(t *testing.T, s *sandbox) {
		ctx := within(t)
		var wg sync.WaitGroup
		defer wg.Wait()
		for range 3 {
			e, err := s.dial().Exec(ctx, agentclient.ExecSpec{Cmd: "sleep", Args: []string{"999"}})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			wg.Go(func() {
				chunk := make([]byte, 64<<10)
				for err := error(nil); err == nil; {
					_, err = e.Stdin().Write(chunk)
				}
			})
		}
		c := s.dial()
		data := random(24 << 20)
		e, err := c.Exec(ctx, agentclient.ExecSpec{Cmd: "cat"})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			e.Stdin().Write(data)
			e.Stdin().Close()
		})
		back, err := io.ReadAll(e.Stdout())
		if err != nil || !bytes.Equal(back, data) {
			t.Errorf("cat gave %d bytes of %d back, %v", len(back), len(data), err)
		}
		f, err := s.dial().FS().OpenFile(ctx, filepath.Join(t.TempDir(), "file"), agent.OpenOptions{Write: true, Create: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Upload(ctx, bytes.NewReader(data), 0); err != nil {
			t.Error(err)
		}
	})
}
