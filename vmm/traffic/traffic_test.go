package traffic

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A watcher is told what crosses, how much of it at least, and what it missed; without one nothing is kept.
func TestWatch(t *testing.T) {
	var l Log
	if l.Wants() || (*Log)(nil).Wants() {
		t.Fatal("nobody watches")
	}
	path := filepath.Join(t.TempDir(), "t")
	listener, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- l.Serve(ctx, listener) }()
	pieces := make(chan Piece, 1000)
	watching, leave := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- Watch(watching, path, func(p Piece) { pieces <- p }) }()
	for !l.Wants() {
		time.Sleep(time.Millisecond)
	}
	const many = 5000
	for i := range many {
		l.Crossed(i%2 == 0, 1, uint32(i), "core.fs.request", 10)
	}
	l.Done("pause", time.Millisecond, errors.New(strings.Repeat("é", 500)))
	seen, lost := 0, uint64(0)
	for end := time.After(time.Minute); ; {
		var p Piece
		select {
		case p = <-pieces:
		case <-end:
			t.Fatal("never")
		}
		seen += len(p.List)
		lost += p.Lost
		last := p.List[len(p.List)-1]
		if last.Wire == Control {
			if last.Method != "pause" || len(last.Error) > maxError || last.Took != time.Millisecond {
				t.Errorf("%+v", last)
			}
			break
		}
	}
	if uint64(seen)+lost != many+1 {
		t.Errorf("%d seen, %d lost", seen, lost)
	}
	leave()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Records of one operation are one crossing.
func TestTogether(t *testing.T) {
	var l Log
	for range 100 {
		l.Crossed(true, 0, 7, "bulk", 1000)
	}
	list, _, lost, _ := l.since(0)
	if len(list) != 1 || list[0].Bytes != 100_000 || list[0].Count != 100 || lost != 0 {
		t.Errorf("%+v %d", list, lost)
	}
}
