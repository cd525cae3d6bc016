package tui

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"msb/protocol/agent"
	"msb/vmm"
)

// folder is a sandbox with two files.
type folder struct{}

func (folder) List(context.Context, string) ([]agent.Entry, error) {
	return []agent.Entry{{Path: "/work/repo/a.go", Kind: agent.KindFile}, {Path: "/work/repo/b.go", Kind: agent.KindFile}}, nil
}
func (folder) Read(context.Context, string, int) ([]byte, error) { return []byte("package b\n"), nil }

// Files are copied either way, and nothing of this machine is written over.
func TestCopyFiles(t *testing.T) {
	var mu sync.Mutex
	var did []string
	s := openWith(t, 100, 24, func(o *Options) {
		o.Copy = func(_ context.Context, sb vmm.Sandbox, up bool, from, to string) error {
			mu.Lock()
			defer mu.Unlock()
			if up {
				from, to = "host:"+from, sb.Name+":"+to
			} else {
				from, to = sb.Name+":"+from, "host:"+to
			}
			did = append(did, from+" "+to)
			return nil
		}
	})
	here := filepath.Join(t.TempDir(), "x.txt")
	if err := os.WriteFile(here, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.until("Show me around")
	s.inside(func(a *App) {
		a.tab = tabFiles
		read := a.files.Start(a.ctx, folder{})
		go func() { s.p.Send(read()) }()
	})
	s.until("a.go", "b.go")
	s.press("down", "u")
	s.until("Copy into demo", "/work/repo")
	s.press("/nowhere/at/all", "\x13")
	s.until("no such file")
	s.press("ctrl+u", here, "\x13")
	s.until("copied to /work/repo/")
	s.press("s")
	s.until("Save b.go")
	s.press("ctrl+u", here, "enter")
	s.until("is there already")
	s.press("ctrl+u", here+".new", "enter")
	s.wait("the copy", func() bool { mu.Lock(); defer mu.Unlock(); return len(did) == 2 })
	mu.Lock()
	defer mu.Unlock()
	if did[0] != "host:"+here+" demo:/work/repo/" || did[1] != "demo:/work/repo/b.go host:"+here+".new" {
		t.Error(did)
	}
}
