package fusefs_test

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync/atomic"

	"msb/protocol/agent"
)

// script answers an operation in the guest's place, or says false.
type script func(op agent.FSOp) (agent.FSResponsePayload, bool)

// scripts are what a peer may do, by name. They work on the guest directory
// dir. "honest" is for mounts that a relay would not let in, because they run
// as another user.
var scripts = map[string]func(dir string) script{
	"honest": func(string) script {
		return func(agent.FSOp) (agent.FSResponsePayload, bool) { return agent.FSResponsePayload{}, false }
	},
	"names":   names,
	"lies":    lies,
	"endless": endless,
	"targets": targets,
	"errors":  errnos,
	"counts":  counts,
}

func yes(v agent.FSValue) (agent.FSResponsePayload, bool) {
	return agent.FSResponsePayload{OK: true, Data: v}, true
}

func no(text string) (agent.FSResponsePayload, bool) {
	return agent.FSResponsePayload{Error: &text}, true
}

func notMine() (agent.FSResponsePayload, bool) { return agent.FSResponsePayload{}, false }

func plain(path string, size uint64) agent.Entry {
	now := int64(1700000000)
	return agent.Entry{Path: path, Kind: agent.KindFile, Size: size, Mode: 0o100644, Modified: &now, Mtime: &now, Atime: &now}
}

// names lists entries that cannot be.
func names(dir string) script {
	var calls atomic.Int64
	return func(op agent.FSOp) (agent.FSResponsePayload, bool) {
		if _, ok := op.(agent.OpReadDir); !ok {
			return notMine()
		}
		if calls.Add(1) > 1 {
			return yes(agent.FSList{})
		}
		var l agent.FSList
		for _, name := range []string{
			"good", "", ".", "..", "a/b", "../up", "nul\x00nul", "good", strings.Repeat("x", 256), "/", "also good",
		} {
			l = append(l, plain(dir+"/"+name, 1))
		}
		l = append(l, plain("", 1), plain("/", 1), plain("/etc/passwd", 1))
		return yes(l)
	}
}

// lies tells attributes that contradict themselves or each other.
func lies(dir string) script {
	var changed atomic.Bool
	entry := func(name string) (agent.Entry, bool) {
		e := plain(dir+"/"+name, 1)
		switch name {
		case "kind":
			e.Kind = agent.KindDir
		case "mode":
			e.Mode = 0o644
		case "made-up":
			e.Kind = "hologram"
		case "huge":
			e.Size = math.MaxUint64
		case "late":
			t := int64(math.MaxInt64)
			e.Mtime = &t
		case "early":
			t := int64(math.MinInt64)
			e.Atime = &t
		case "change":
			changed.Store(true)
		case "changes":
			if changed.Load() {
				e.Kind, e.Mode = agent.KindDir, 0o40755
			}
		case "long": // claims a terabyte and has three bytes
			e.Size = 1 << 40
		case "device":
			e.Kind, e.Mode = agent.KindOther, 0o20666
		case "timeless":
			e.Modified, e.Mtime, e.Atime = nil, nil, nil
		default:
			return e, false
		}
		return e, true
	}
	return func(op agent.FSOp) (agent.FSResponsePayload, bool) {
		switch op := op.(type) {
		case agent.OpStat:
			if e, ok := entry(filepath.Base(op.Path)); ok {
				return yes(agent.FSStat(e))
			}
		case agent.OpFStat:
			return yes(agent.FSStat(plain(dir+"/long", 1<<40)))
		}
		return notMine()
	}
}

// endless lists a directory without an end.
func endless(dir string) script {
	var n atomic.Int64
	return func(op agent.FSOp) (agent.FSResponsePayload, bool) {
		if _, ok := op.(agent.OpReadDir); !ok {
			return notMine()
		}
		var l agent.FSList
		for range 4096 {
			l = append(l, plain(fmt.Sprintf("%s/%d", dir, n.Add(1)), 1))
		}
		return yes(l)
	}
}

var hostileTargets = []string{
	"", "nul\x00", strings.Repeat("x/", 3000), "/", "/..", "/../../etc/passwd", "//etc/passwd", "..", "../..",
	"../../../../../../etc/passwd", "here/../../../etc/passwd", "here/here/../../../../etc/passwd", "./../../etc/passwd",
	"/proc/self/root/etc/passwd", "/etc/../etc/passwd",
}

// targets has symlinks t0, t1, … with hostileTargets, and "here", which makes
// ".." lead further than it seems.
func targets(dir string) script {
	link := agent.Entry{Kind: agent.KindSymlink, Mode: 0o120777, Size: 1}
	target := func(path string) (string, bool) {
		name := filepath.Base(path)
		if name == "here" {
			return ".", true
		}
		var i int
		if n, _ := fmt.Sscanf(name, "t%d", &i); n == 1 && i < len(hostileTargets) {
			return hostileTargets[i], true
		}
		return "", false
	}
	return func(op agent.FSOp) (agent.FSResponsePayload, bool) {
		switch op := op.(type) {
		case agent.OpStat:
			if _, ok := target(op.Path); ok {
				e := link
				e.Path = op.Path
				return yes(agent.FSStat(e))
			}
		case agent.OpReadLink:
			if t, ok := target(op.Path); ok {
				return yes(agent.FSPath(t))
			}
		}
		return notMine()
	}
}

// errnos fails with numbers that a kernel must not see.
func errnos(dir string) script {
	return func(op agent.FSOp) (agent.FSResponsePayload, bool) {
		if op, ok := op.(agent.OpStat); ok {
			switch filepath.Base(op.Path) {
			case "enosys":
				return no("stat: Function not implemented (os error 38)")
			case "beyond":
				return no("stat: what (os error 4095)")
			case "nothing":
				return no("stat: success (os error 0)")
			case "wordy":
				return no("\x1b[2J no number at all")
			case "wrong":
				return yes(agent.FSHandle(7))
			case "path":
				return yes(agent.FSPath("/etc/passwd"))
			}
		}
		return notMine()
	}
}

// counts is honest, and tells as the size of "reads" and "bytes" how many reads
// it was asked for and how long they were together.
func counts(dir string) script {
	var reads, bytes atomic.Uint64
	return func(op agent.FSOp) (agent.FSResponsePayload, bool) {
		switch op := op.(type) {
		case agent.OpRead:
			reads.Add(1)
			if op.Len != nil {
				bytes.Add(*op.Len)
			}
		case agent.OpStat:
			switch filepath.Base(op.Path) {
			case "reads":
				return yes(agent.FSStat(plain(op.Path, reads.Load())))
			case "bytes":
				return yes(agent.FSStat(plain(op.Path, bytes.Load())))
			}
		}
		return notMine()
	}
}
