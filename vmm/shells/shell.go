package shells

import (
	"context"
	"sync"
	"syscall"
	"time"
)

const (
	readSize   = 32 << 10
	inputQueue = 64              // pieces of at most one frame
	lagLimit   = 256 << 10       // how far behind a front end may be before the program waits for it, in bytes
	lagTime    = 2 * time.Second // how long the program waits for one that takes nothing
	callTime   = 5 * time.Second // for a call to the guest
	hangupTime = time.Second     // from SIGHUP to SIGKILL
)

// kept is one shell.
type kept struct {
	id      uint32
	user    string
	started time.Time
	program Program
	changed func() // tells watchers; called without mu
	ctx     context.Context
	input   chan []byte
	resized chan struct{}

	mu      sync.Mutex
	moved   *sync.Cond // output, an end, or a front end that took some
	past    *history
	now     Modes
	ends    map[*end]struct{}
	active  *end // the front end that was used last
	rows    uint16
	cols    uint16
	used    time.Time
	over    *End
	closing bool
	redraw  bool // the program shall draw its screen anew
	turns   int  // counts changes of the front end in use
}

// end is a front end's place in the output.
type end struct {
	pos        int64
	rows, cols uint16
	turn       int  // the larger, the later it was used
	stuck      bool // it took nothing for lagTime: nobody waits for it
	gone       bool
	sized      bool // it has to be told the size
}

func newKept(ctx context.Context, id uint32, s Spec, p Program, changed func()) *kept {
	now := time.Now()
	k := &kept{id: id, user: s.User, started: now, used: now, program: p, changed: changed, ctx: ctx,
		input: make(chan []byte, inputQueue), resized: make(chan struct{}, 1),
		past: newHistory(), ends: make(map[*end]struct{}), rows: s.Rows, cols: s.Cols}
	k.moved = sync.NewCond(&k.mu)
	return k
}

// run carries the program until it has ended.
func (k *kept) run() {
	var work sync.WaitGroup
	ended, cancel := context.WithCancel(k.ctx)
	work.Go(func() { k.write(ended) })
	work.Go(func() { k.resize(ended) })
	stop := context.AfterFunc(k.ctx, func() {
		k.program.Close()
		k.mu.Lock()
		k.closing = true
		k.moved.Broadcast()
		k.mu.Unlock()
	})
	defer stop()
	k.read()
	result := k.program.Wait()
	k.program.Close()
	cancel()
	work.Wait()
	k.mu.Lock()
	k.over, k.used = &result, time.Now()
	k.moved.Broadcast()
	k.mu.Unlock()
	k.changed()
}

// read takes what the program prints.
func (k *kept) read() {
	buf := make([]byte, readSize)
	title := ""
	for {
		n, err := k.program.Read(buf)
		k.mu.Lock()
		k.past.write(buf[:n])
		k.now.Write(buf[:n])
		k.moved.Broadcast()
		k.await()
		renamed := k.now.title != title
		title = k.now.title
		k.mu.Unlock()
		if renamed {
			k.changed()
		}
		if err != nil {
			return
		}
	}
}

// await waits for front ends that are far behind as long as they take something:
// a program may not be faster than the terminals that show it. k.mu is held.
func (k *kept) await() {
	behind := func() (e *end) {
		for e := range k.ends {
			if !e.stuck && !e.gone && k.past.end-e.pos > lagLimit {
				return e
			}
		}
		return nil
	}
	for e := behind(); e != nil && !k.closing; e = behind() {
		from := e.pos
		timer := time.AfterFunc(lagTime, func() {
			k.mu.Lock()
			if e.pos == from {
				e.stuck = true
			}
			k.moved.Broadcast()
			k.mu.Unlock()
		})
		for e.pos == from && !e.stuck && !e.gone && !k.closing {
			k.moved.Wait()
		}
		timer.Stop()
	}
}

// write types what front ends typed.
func (k *kept) write(ctx context.Context) {
	for {
		select {
		case p := <-k.input:
			if _, err := k.program.Write(p); err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// resize gives the terminal the size that was asked for last.
func (k *kept) resize(ctx context.Context) {
	for {
		select {
		case <-k.resized:
			k.mu.Lock()
			rows, cols, redraw := k.rows, k.cols, k.redraw
			k.redraw = false
			k.mu.Unlock()
			call, cancel := context.WithTimeout(ctx, callTime)
			if redraw { // only a change of the size makes a program draw
				_ = k.program.Resize(call, rows, max(cols, 2)-1)
			}
			_ = k.program.Resize(call, rows, cols) // it may have ended
			cancel()
		case <-ctx.Done():
			return
		}
	}
}

// attach adds a front end. What it is shown first is the past, unless it is the
// one that opened the shell.
func (k *kept) attach(rows, cols uint16, opener bool) (e *end) {
	k.mu.Lock()
	e = &end{pos: -1, rows: rows, cols: cols, sized: true}
	if opener {
		e.pos = 0
	}
	k.ends[e] = struct{}{}
	// A program that draws the whole screen draws it anew for whoever comes.
	k.use(e, k.now.Alternate())
	k.mu.Unlock()
	k.changed()
	return e
}

// drop ends the showing to a front end.
func (k *kept) drop(e *end) {
	k.mu.Lock()
	e.gone = true
	k.moved.Broadcast()
	k.mu.Unlock()
}

// leave takes a front end away; the one that was used before decides the size.
func (k *kept) leave(e *end) {
	k.mu.Lock()
	e.gone = true
	delete(k.ends, e)
	k.used = time.Now()
	if k.active == e {
		k.active = nil
		var last *end
		for o := range k.ends {
			if last == nil || o.turn > last.turn {
				last = o
			}
		}
		if last != nil {
			k.use(last, false)
		}
	}
	k.moved.Broadcast()
	k.mu.Unlock()
	k.changed()
}

// use makes e the front end in use. k.mu is held.
func (k *kept) use(e *end, redraw bool) {
	k.used = time.Now()
	if k.active != e {
		k.turns++
		e.turn, k.active = k.turns, e
	}
	if e.rows == 0 || e.cols == 0 {
		return
	}
	if k.rows == e.rows && k.cols == e.cols {
		if redraw {
			k.redraw = true
			k.poke()
		}
		return
	}
	k.rows, k.cols = e.rows, e.cols
	for o := range k.ends {
		o.sized = true
	}
	k.poke()
	k.moved.Broadcast()
}

func (k *kept) poke() {
	select {
	case k.resized <- struct{}{}:
	default:
	}
}

// size is a front end whose terminal has become another.
func (k *kept) size(e *end, rows, cols uint16) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e.rows, e.cols = rows, cols
	k.use(e, false)
}

// typed is input of a front end. It waits for a program that does not read, but
// not for ever: the front end's other words stand behind it.
func (k *kept) typed(ctx context.Context, e *end, p []byte) error {
	k.mu.Lock()
	over := k.over != nil
	k.use(e, false)
	k.mu.Unlock()
	if over {
		return nil
	}
	late := time.NewTimer(callTime)
	defer late.Stop()
	select {
	case k.input <- append([]byte(nil), p...):
		return nil
	case <-late.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-k.ctx.Done():
		return k.ctx.Err()
	}
}

// hangUp asks the program to end, and kills it when it does not.
func (k *kept) hangUp() {
	ctx, cancel := context.WithTimeout(k.ctx, hangupTime)
	defer cancel()
	_ = k.program.Signal(ctx, syscall.SIGHUP)
	stop := context.AfterFunc(ctx, func() {
		k.mu.Lock()
		k.moved.Broadcast()
		k.mu.Unlock()
	})
	defer stop()
	k.mu.Lock()
	for k.over == nil && ctx.Err() == nil {
		k.moved.Wait()
	}
	over := k.over != nil
	k.mu.Unlock()
	if !over {
		k.program.Close()
	}
}

func (k *kept) info() Info {
	k.mu.Lock()
	defer k.mu.Unlock()
	return Info{ID: k.id, Title: k.now.Title(), User: k.user, Started: k.started, Used: k.used, Attached: len(k.ends),
		Rows: k.rows, Cols: k.cols, Kept: k.past.size, Ended: k.over}
}
