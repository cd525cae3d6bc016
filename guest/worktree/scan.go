package worktree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	wire "msb/protocol/worktree"
)

// fresh is how old a change must be for a stamp to be trusted: a later change
// could have the same time.
const fresh = 2 * time.Second

// scanner walks a tree.
type scanner struct {
	out     *wire.Writer
	all     bool
	known   map[string]string // path → stamp
	tracked map[string]bool   // files that are never hidden, and the folders above them
	extra   []byte            // ignore patterns that hold everywhere
	credit  *credit
	dev     uint64
	buf     []byte
}

// scan answers a request to describe the tree.
func scan(root string, all bool, in io.Reader, out io.Writer) error {
	s := &scanner{out: wire.NewWriter(out), all: all, known: make(map[string]string), tracked: make(map[string]bool),
		credit: newCredit(), buf: make([]byte, wire.Piece)}
	r := wire.NewReader(in)
	if err := s.request(r); err != nil {
		return err
	}
	go s.credit.take(r) // ends with the input, which ends with the process
	err := s.tree(root)
	if err != nil && s.credit.failed() != nil {
		return err
	}
	return s.out.End(err)
}

// request reads what the host knows.
func (s *scanner) request(r *wire.Reader) error {
	for {
		t, p, err := r.Next()
		if err != nil {
			return fmt.Errorf("read the request: %w", err)
		}
		switch t {
		case wire.FrameKnown:
			k, err := wire.DecodeKnown(p)
			if err != nil {
				return err
			}
			s.known[k.Path] = k.Stamp
		case wire.FrameTracked:
			s.track(string(p))
		case wire.FrameIgnore:
			s.extra = append(append(s.extra, p...), '\n')
		case wire.FrameEnd:
			return nil
		default:
			return fmt.Errorf("%w: frame %q in a request", wire.ErrFrame, t)
		}
	}
}

func (s *scanner) track(path string) {
	for path != "" && !s.tracked[path] {
		s.tracked[path] = true
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
	}
}

func (s *scanner) tree(root string) error {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", root, err)
	}
	d := os.NewFile(uintptr(fd), root)
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("open %s: %w", root, err)
	}
	s.dev = st.Dev
	return s.dir(d, "", 0, parseRules(s.extra, "", nil), false)
}

// dir sends what is in a folder. In a hidden one only tracked files count.
func (s *scanner) dir(d *os.File, path string, depth int, above *rules, hidden bool) error {
	names, err := d.Readdirnames(-1)
	if err != nil {
		return s.problem(path, wire.KindDir, fmt.Errorf("list: %w", err))
	}
	slices.Sort(names)
	rules := above
	if !s.all && !hidden && slices.Contains(names, ".gitignore") {
		if content := readIgnore(int(d.Fd())); content != nil {
			rules = parseRules(content, path, above)
		}
	}
	for _, name := range names {
		if strings.EqualFold(name, ".git") {
			continue
		}
		if err := s.file(int(d.Fd()), path+name, name, depth, rules, hidden); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) file(dir int, path, name string, depth int, rules *rules, hidden bool) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err == unix.ENOENT {
			return nil // gone meanwhile
		}
		return s.problem(path, wire.KindOther, err)
	}
	kind := st.Mode & unix.S_IFMT
	isDir := kind == unix.S_IFDIR
	if !s.all {
		hidden = hidden || rules.hides(path, isDir)
		if hidden && !s.tracked[path] {
			return nil
		}
	}
	switch {
	case isDir:
		return s.subdir(dir, path, name, depth, st, rules, hidden)
	case kind == unix.S_IFLNK:
		return s.link(dir, path, name, st)
	case kind == unix.S_IFREG:
		return s.regular(dir, path, name)
	}
	return s.problem(path, wire.KindOther, errors.New("it is no file, folder or link"))
}

func (s *scanner) subdir(dir int, path, name string, depth int, st unix.Stat_t, rules *rules, hidden bool) error {
	if st.Dev != s.dev {
		return s.problem(path, wire.KindOther, errors.New("another file system is mounted there"))
	}
	if depth+2 > wire.MaxDepth || len(path)+256 > wire.MaxPath {
		return s.problem(path, wire.KindOther, errors.New("folders are too deep"))
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if err == unix.ENOENT {
			return nil
		}
		return s.problem(path, wire.KindDir, err)
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	if err := s.send(wire.Entry{Path: path, Kind: wire.KindDir, Mode: st.Mode & 0o7777, MTime: st.Mtim.Nano()}); err != nil {
		return err
	}
	return s.dir(d, path+"/", depth+1, rules, hidden)
}

func (s *scanner) link(dir int, path, name string, st unix.Stat_t) error {
	buf := make([]byte, 1<<16)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return s.problem(path, wire.KindOther, err)
	}
	return s.send(wire.Entry{Path: path, Kind: wire.KindLink, Mode: 0o777, MTime: st.Mtim.Nano(), Target: string(buf[:n])})
}

// regular sends a file, with its content unless the host has it.
func (s *scanner) regular(dir int, path, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if err == unix.ENOENT {
			return nil
		}
		return s.problem(path, wire.KindFile, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return s.problem(path, wire.KindOther, errors.New("it changed while it was read"))
	}
	e := wire.Entry{Path: path, Kind: wire.KindFile, Mode: st.Mode & 0o7777, MTime: st.Mtim.Nano(), Stamp: stamp(st)}
	if known := s.known[path]; known != "" && known == e.Stamp {
		e.Same = true
		return s.send(e)
	}
	if err := s.send(e); err != nil {
		return err
	}
	why := ""
	for {
		n, err := f.Read(s.buf)
		if n > 0 {
			if err := s.data(s.buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			why = err.Error()
			break
		}
	}
	var after unix.Stat_t
	if err := unix.Fstat(fd, &after); why == "" && (err != nil || stamp(after) != e.Stamp) {
		why = "changed" // the content is what was read, the stamp says nothing
	}
	if err := s.out.Frame(wire.FrameClose, []byte(why)); err != nil {
		return err
	}
	return s.credit.wait(s.out)
}

// stamp identifies the content of a file, "" when it may still change without
// a trace.
func stamp(st unix.Stat_t) string {
	changed := time.Unix(0, st.Ctim.Nano())
	if age := time.Since(changed); age < fresh {
		return ""
	}
	var b [48]byte
	for i, v := range []uint64{st.Dev, st.Ino, uint64(st.Size), uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano()), uint64(st.Mode)} {
		binary.BigEndian.PutUint64(b[8*i:], v)
	}
	return string(b[:])
}

func (s *scanner) problem(path string, kind byte, err error) error {
	if path == "" {
		return err
	}
	return s.send(wire.Entry{Path: strings.TrimSuffix(path, "/"), Kind: kind, Problem: err.Error()})
}

func (s *scanner) send(e wire.Entry) error {
	if err := s.out.Entry(e); err != nil {
		return err
	}
	return s.credit.wait(s.out)
}

func (s *scanner) data(p []byte) error {
	if err := s.out.Frame(wire.FrameData, p); err != nil {
		return err
	}
	return s.credit.wait(s.out)
}

func readIgnore(dir int) []byte {
	fd, err := unix.Openat(dir, ".gitignore", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), ".gitignore")
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	content, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile))
	if err != nil {
		return nil
	}
	return content
}

// credit is how far the host has read.
type credit struct {
	mu    sync.Mutex
	cond  *sync.Cond
	taken uint64
	err   error
}

func newCredit() *credit {
	c := &credit{}
	c.cond = sync.NewCond(&c.mu)
	return c
}

// take reads acknowledgements until the input ends.
func (c *credit) take(r *wire.Reader) {
	for {
		t, p, err := r.Next()
		var n uint64
		if err == nil && t != wire.FrameAck {
			err = wire.ErrFrame
		}
		if err == nil {
			n, err = wire.AckOf(p)
		}
		c.mu.Lock()
		c.taken, c.err = max(c.taken, n), err
		c.cond.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *credit) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// wait waits until what was written is within the window.
func (c *credit) wait(w *wire.Writer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.Written()-min(c.taken, w.Written()) < wire.Window {
		return nil
	}
	c.mu.Unlock()
	err := w.Flush()
	c.mu.Lock()
	if err != nil {
		return err
	}
	for w.Written()-min(c.taken, w.Written()) >= wire.Window {
		if c.err != nil {
			return fmt.Errorf("the host has gone: %w", c.err)
		}
		c.cond.Wait()
	}
	return nil
}
