package fusefs_test

import (
	"os"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// notOffered are the conformance tests of what the protocol of a stock agent cannot do.
var notOffered = map[string]string{
	"Fallocate":           "no fallocate",
	"FallocateKeepSize":   "no fallocate",
	"FcntlFlockLocksFile": "expects a process to be in the way of its own lock, which no local file system does",
	"Link":                "no hard links",
	"LinkUnlinkRename":    "no hard links",
	"OpenSymlinkRace":     "a file that is gone is ESTALE: the kernel then looks again, but an open may lose that race too",
	"SymlinkReadlink":     "absolute symlinks are rewritten",
	"XAttr":               "no extended attributes",
	"XAttrLarge":          "no extended attributes",
}

// notRight are those that ask for something else than Linux does.
var notRight = map[string]string{
	"FcntlFlockLocksFile": notOffered["FcntlFlockLocksFile"],
	"OpenSymlinkRace":     notOffered["OpenSymlinkRace"],
	"SymlinkReadlink":     "absolute symlinks are rewritten",
}

func TestConformance(t *testing.T) {
	eachBackend(t, func(t *testing.T, stock bool) {
		s := newSandbox(t, func(s *sandbox) { s.stock = stock })
		skip := notOffered
		if !stock {
			skip = notRight
		}
		for name, run := range posixtest.All {
			t.Run(name, func(t *testing.T) {
				if why := skip[name]; why != "" {
					t.Skip(why)
				}
				dir := s.at(name)
				must(t, os.Mkdir(dir, 0o755))
				run(t, dir)
			})
		}
	})
}
