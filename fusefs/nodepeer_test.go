package fusefs_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"msb/protocol/agent"
)

// liar is a guest with msb.fs that makes everything up: a root full of files,
// each with a fault of its own.
type liar struct {
	mu    sync.Mutex
	last  uint64
	names map[uint64]string // of nodes and handles
	lists atomic.Int64

	changed atomic.Bool
}

// lyingNodes is the script of a peer that offers msb.fs.
const lyingNodes = "lying nodes"

func newLiar() *liar { return &liar{last: 1 << 41, names: map[uint64]string{}} }

func (l *liar) fresh(name string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.names[l.last] = name
	return l.last
}

func (l *liar) name(id uint64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.names[id]
}

func (l *liar) answer(req agent.NodeRequestPayload) agent.NodeResponsePayload {
	var res agent.NodeResponsePayload
	ref := func(id uint64) string {
		if id < uint64(len(res.Results)) {
			switch r := res.Results[id].(type) {
			case *agent.NodeEntryResult:
				id = r.Node
			case *agent.NodeHandleResult:
				id = r.Handle
			}
		}
		return l.name(id)
	}
	for _, op := range req.Ops {
		r, errno := l.do(op, ref)
		if errno != 0 {
			res.Errno = uint32(errno)
			return res
		}
		res.Results = append(res.Results, r)
	}
	return res
}

func (l *liar) attr(name string) agent.NodeAttr {
	a := agent.NodeAttr{Ino: 100 + uint64(len(name)), Mode: 0o100644, Nlink: 1, Size: 10, BtimeSec: 1}
	for _, c := range name {
		a.Ino = a.Ino*31 + uint64(c)
	}
	switch name {
	case "", "endless", "odd names", "same offset":
		a.Mode = 0o40755
	case "no kind":
		a.Mode = 0o644
	case "no number":
		a.Ino = 0
	case "huge":
		a.Size = math.MaxUint64
	case "late":
		a.MtimeSec = math.MaxInt64
	case "nanoseconds":
		a.CtimeNsec = math.MaxUint32
	case "change":
		l.changed.Store(true)
	case "changes":
		if l.changed.Load() {
			a.Mode = 0o40755
		}
	case "block size":
		a.Blksize = math.MaxUint32
	case "link":
		a.Mode = 0o120777
	case "terabyte":
		a.Size = 1 << 40
	}
	return a
}

func (l *liar) do(op agent.NodeOp, ref func(uint64) string) (agent.NodeResult, syscall.Errno) {
	switch op := op.(type) {
	case *agent.NodeAttach:
		return &agent.NodeEntryResult{Node: l.fresh(""), Attr: l.attr("")}, 0
	case *agent.NodeSession:
		return &agent.NodeBytesResult{Data: make([]byte, 16)}, 0
	case *agent.NodeLookup:
		name := string(op.Name)
		if name == "unknown errno" {
			return nil, 4000
		}
		if name == "enosys" {
			return nil, syscall.ENOSYS
		}
		return &agent.NodeEntryResult{Node: l.fresh(name), Attr: l.attr(name)}, 0
	case *agent.NodeGetAttr:
		return &agent.NodeAttrResult{Attr: l.attr(ref(op.Target))}, 0
	case *agent.NodeOpen:
		return &agent.NodeHandleResult{Handle: l.fresh(ref(op.Node))}, 0
	case *agent.NodeRead:
		switch ref(op.Handle) {
		case "long answer":
			return &agent.NodeBytesResult{Data: make([]byte, op.Len+1000)}, 0
		case "terabyte", "short answer":
			return &agent.NodeBytesResult{Data: []byte("abc")}, 0
		}
		return &agent.NodeBytesResult{Data: []byte("0123456789")}, 0
	case *agent.NodeReadLink:
		return &agent.NodeBytesResult{Data: []byte("../../../../etc/passwd")}, 0
	case *agent.NodeReadDir:
		return &agent.NodeListResult{Entries: l.list(ref(op.Handle), op.Offset)}, 0
	case *agent.NodeClose, *agent.NodeForget:
		return &agent.NodeNoResult{}, 0
	case *agent.NodeStatFS:
		return &agent.NodeStatFSResult{Bsize: math.MaxUint32, Blocks: math.MaxUint64}, 0
	}
	return nil, syscall.EOPNOTSUPP
}

func (l *liar) list(dir string, offset uint64) (all []agent.NodeDirEntry) {
	entry := func(name string, next uint64) agent.NodeDirEntry {
		return agent.NodeDirEntry{Name: []byte(name), Ino: 5, Type: syscall.S_IFREG, Offset: next, Attr: l.attr(name)}
	}
	switch dir {
	case "endless", "same offset":
		for i := range 4096 {
			next := offset + uint64(i) + 1
			if dir == "same offset" {
				next = 77
			}
			all = append(all, entry(fmt.Sprint(l.lists.Add(1)), next))
		}
	case "odd names":
		if offset == 0 {
			for i, name := range []string{"good", "", ".", "..", "a/b", "../up", "nul\x00", strings.Repeat("x", 256), "/", "also good", "\xff"} {
				all = append(all, entry(name, uint64(i)+1))
			}
		}
	}
	return all
}

func TestHostileNodes(t *testing.T) {
	s := hostile(t, lyingNodes)
	for _, name := range []string{"no kind", "no number", "huge", "late", "nanoseconds", "unknown errno"} {
		_, err := os.Lstat(s.at(name))
		wantErrno(t, name, err, syscall.EIO)
	}
	_, err := os.Lstat(s.at("enosys"))
	wantErrno(t, "enosys", err, syscall.EOPNOTSUPP)
	info, err := os.Lstat(s.at("changes"))
	must(t, err)
	if !info.Mode().IsRegular() {
		t.Errorf("changes: %v", info.Mode())
	}
	becomesDirectory(t, s)
	var st syscall.Stat_t
	must(t, syscall.Lstat(s.at("block size"), &st))
	if st.Blksize <= 0 || st.Blksize > 1<<20 {
		t.Errorf("block size %d", st.Blksize)
	}
	for name, want := range map[string]int{"terabyte": 3, "short answer": 3, "honest": 10} {
		fast(t, patience, name, func() {
			f, err := os.Open(s.at(name))
			must(t, err)
			defer f.Close()
			buf := make([]byte, 4096)
			n, _ := f.Read(buf)
			if n > 4096 || n < want && n != 0 {
				t.Errorf("%s: %d bytes", name, n)
			}
		})
	}
	f, err := os.Open(s.at("long answer"))
	must(t, err)
	defer f.Close()
	if data := make([]byte, 100); true {
		if n, err := f.Read(data); n > 10 {
			t.Errorf("more than the file has: %d %v", n, err)
		}
	}
	target, err := os.Readlink(s.at("link"))
	must(t, err)
	if strings.HasPrefix(target, "..") {
		t.Errorf("a link leads out: %q", target)
	}
	for _, dir := range []string{"endless", "same offset"} {
		fast(t, patience, dir, func() {
			d, err := os.Open(s.at(dir))
			must(t, err)
			defer d.Close()
			_, err = d.Readdirnames(-1)
			if err == nil {
				t.Errorf("%s: it ends", dir)
			}
		})
	}
	d, err := os.Open(s.at("odd names"))
	must(t, err)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	must(t, err)
	slices.Sort(names)
	if want := []string{"also good", "good", "\xff"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
	if bytes.Contains([]byte(s.mount.log.String()), []byte("panic")) {
		t.Error("a panic")
	}
}
