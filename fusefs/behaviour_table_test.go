package fusefs_test

import (
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func setGroups(gids []int) {
	groups := make([]uint32, len(gids))
	for i, g := range gids {
		groups[i] = uint32(g)
	}
	var p unsafe.Pointer
	if len(groups) > 0 {
		p = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(p), 0); errno != 0 {
		panic(errno)
	}
}

// kinds are what a name can stand for, and how each is made.
var kinds = []string{"file", "dir", "fifo", "sock", "blk", "chr", "link"}

func maker(kind, name string, mode int) step {
	switch kind {
	case "file":
		return step{call: "create", args: []any{name, mode}}
	case "dir":
		return step{call: "mkdir", args: []any{name, mode}}
	case "fifo":
		return step{call: "mknod", args: []any{name, unix.S_IFIFO | mode}}
	case "sock":
		return step{call: "mknod", args: []any{name, unix.S_IFSOCK | mode}}
	case "blk":
		return step{call: "mknod", args: []any{name, unix.S_IFBLK | mode}}
	case "chr":
		return step{call: "mknod", args: []any{name, unix.S_IFCHR | mode}}
	}
	return step{call: "symlink", args: []any{"nowhere", name}}
}

func remover(kind, name string) step {
	if kind == "dir" {
		return step{call: "rmdir", args: []any{name}}
	}
	return step{call: "unlink", args: []any{name}}
}

const (
	alice = 65534
	bob   = 65533
	carol = 65532
)

// scripted collects steps.
type scripted struct{ steps []step }

func (s *scripted) root(call string, args ...any) {
	s.steps = append(s.steps, step{call: call, args: args})
}
func (s *scripted) as(uid int, call string, args ...any) {
	s.steps = append(s.steps, step{uid: uid, gids: []int{uid}, call: call, args: args})
}
func (s *scripted) in(uid int, gids []int, call string, args ...any) {
	s.steps = append(s.steps, step{uid: uid, gids: gids, call: call, args: args})
}
func (s *scripted) seen(watch, call string, args ...any) {
	s.steps = append(s.steps, step{call: call, args: args, watch: watch})
}
func (s *scripted) add(st ...step) { s.steps = append(s.steps, st...) }

func scenarios() []scenario {
	var all []scenario
	script := func(name string, f func(s *scripted)) {
		s := &scripted{}
		f(s)
		all = append(all, scenario{name, s.steps})
	}
	long := strings.Repeat("n", 255)

	script("kinds", func(s *scripted) {
		for _, k := range kinds {
			for _, mode := range []int{0, 0o111, 0o644, 0o755, 0o777, 0o4755, 0o2755, 0o1777, 0o7777} {
				s.add(maker(k, k, mode))
				s.root("stat", k)
				s.seen(".", "stat", k)
				s.add(maker(k, k, mode)) // EEXIST
				s.root("link", k, k+"2")
				s.root("stat", k)
				s.seen(k, "unlink", k+"2")
				s.seen(k, "chmod", k, 0o600)
				s.seen(k, "lchown", k, 1, 2)
				s.root("stat", k)
				s.seen(k, "rename", k, "moved")
				s.root("stat", "moved")
				if k != "blk" && k != "chr" { // a mount has no devices
					s.root("open", "moved", unix.O_RDONLY)
					s.root("open", "moved", unix.O_WRONLY)
					s.root("open", "moved", unix.O_RDONLY|unix.O_NOFOLLOW)
				}
				s.root("open", "moved", unix.O_RDONLY|unix.O_DIRECTORY)
				s.root("open", "moved", unix.O_CREAT|unix.O_EXCL|unix.O_RDWR)
				s.root("truncate", "moved", 3)
				s.root("rmdir", "moved")
				s.root("mkdir", "moved/x", 0o755)
				s.root("rmdir", "moved/x")
				s.root("unlink", "moved")
				s.root("rmdir", "moved")
			}
		}
	})
	script("times", func(s *scripted) {
		for _, k := range kinds {
			st := maker(k, "x", 0o755)
			st.watch = "."
			s.add(st)
			s.seen(".", "link", "x", "y")
			s.seen("x", "link", "x", "z")
			s.seen(".", "rename", "x", "w")
			s.seen(".", "stat", "w")
			s.seen(".", "chmod", "w", 0o700)
			rm := remover(k, "w")
			rm.watch = "."
			s.add(rm)
			s.root("unlink", "y")
			s.root("unlink", "z")
		}
		s.root("create", "f", 0o644)
		s.seen("f", "write", "f", "data")
		s.seen("f", "truncate", "f", 2)
		s.seen("f", "truncate", "f", 2)
		s.seen("f", "open", "f", unix.O_WRONLY|unix.O_TRUNC)
		s.seen("f", "open", "f", unix.O_RDONLY)
		s.seen("f", "chown", "f", -1, -1)
		s.seen("f", "chown", "f", 3, -1)
		for _, v := range [][4]int{{1, 2, 3, 4}, {0, 0, 0, 0}, {1 << 31, 5, 1 << 33, 999999999}, {-1, 0, -100, 7}, {5, unix.UTIME_OMIT, 9, 10}, {5, 1, 9, unix.UTIME_OMIT}, {1, 1000000000, 1, 1}} {
			s.root("utimens", "f", v[0], v[1], v[2], v[3])
			s.root("times", "f")
		}
		s.seen("f", "utimens", "f", 0, unix.UTIME_NOW, 0, unix.UTIME_NOW)
		s.root("utimens", "f", 77, 0, 78, 0)
		for _, v := range [][4]int{{0, unix.UTIME_NOW, 0, unix.UTIME_NOW}, {1, 1, 1, 1}, {0, unix.UTIME_NOW, 0, unix.UTIME_OMIT}, {0, unix.UTIME_OMIT, 0, unix.UTIME_OMIT}} {
			for _, mode := range []int{0o644, 0o666, 0o600} {
				s.root("chmod", "f", mode)
				s.as(alice, "utimens", "f", v[0], v[1], v[2], v[3])
				s.as(3, "utimens", "f", v[0], v[1], v[2], v[3])
			}
		}
	})
	script("names", func(s *scripted) {
		for _, name := range []string{long, long + "n", strings.Repeat("d/", 2040) + "x", "\xff\xfe", "a\nb", " ", "é", "..a", "...", strings.Repeat("é", 127)} {
			s.root("mkdir", name, 0o755)
			s.root("stat", name)
			s.root("create", name+"/f", 0o644)
			s.root("rename", name, "other")
			s.root("link", name, "other")
			s.root("readdir", ".")
			s.root("rename", "other", name)
			s.root("unlink", name+"/f")
			s.root("unlink", name)
			s.root("rmdir", name)
			s.root("mknod", name, unix.S_IFIFO|0o644)
			s.root("unlink", name)
			s.root("symlink", name, name)
			s.root("readlink", name)
			s.root("stat", name)
			s.root("open", name, unix.O_RDONLY)
			s.root("chmod", name, 0o644)
			s.root("truncate", name, 0)
			s.root("unlink", name)
		}
		s.root("symlink", strings.Repeat("x", 4095), "l")
		s.root("readlink", "l")
		s.root("unlink", "l")
		s.root("symlink", strings.Repeat("x", 4096), "l")
		s.root("symlink", "", "l")
		for _, call := range []string{"unlink", "rmdir", "readlink", "stat"} {
			s.root(call, "missing")
			s.root(call, "missing/x")
			s.root(call, "")
			s.root(call, ".")
		}
		s.root("create", "file", 0o644)
		for _, call := range []string{"unlink", "rmdir", "readlink", "stat", "readdir"} {
			s.root(call, "file/x")
			s.root(call, "file")
			s.root("create", "file", 0o644)
		}
		s.root("symlink", "loop2", "loop1")
		s.root("symlink", "loop1", "loop2")
		for _, c := range []string{"loop1", "loop1/x"} {
			s.root("open", c, unix.O_RDONLY)
			s.root("chmod", c, 0o644)
			s.root("truncate", c, 1)
			s.root("chown", c, 1, 1)
			s.root("mkdir", c, 0o755)
			s.root("link", "file", c)
			s.root("rename", "file", c+"/y")
			s.root("utimens", c, 1, 1, 1, 1)
		}
	})
	script("directories", func(s *scripted) {
		s.root("mkdir", "a", 0o755)
		s.root("mkdir", "a/b", 0o755)
		s.root("create", "a/f", 0o644)
		s.root("mkdir", "empty", 0o755)
		s.root("stat", "a")
		s.root("rmdir", "a")
		s.root("unlink", "a/b")
		s.root("rename", "a", "a/b/c")
		s.root("rename", "empty", "a")
		s.root("rename", "a", "empty")
		s.root("readdir", "empty")
		s.root("rename", "empty/f", "empty/b")
		s.root("rename", "empty/b", "empty/f")
		s.root("rmdir", "empty/.")
		s.root("rmdir", "empty/b/..")
		s.root("rename", "empty/.", "x")
		s.root("rename", "empty", "x/")
		s.root("stat", "x")
		s.root("mkdir", "x/y/z", 0o755)
		for _, flags := range []int{unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE, unix.RENAME_NOREPLACE | unix.RENAME_EXCHANGE} {
			s.root("mkdir", "p", 0o700)
			s.root("create", "q", 0o644)
			s.root("create", "p/in", 0o600)
			s.root("rename2", "p", "q", flags)
			s.root("rename2", "p", "new", flags)
			s.root("rename2", "missing", "q", flags)
			for _, n := range []string{"p", "q", "new", "q/in", "p/in"} {
				s.root("stat", n)
			}
			s.root("unlink", "q/in")
			s.root("unlink", "p/in")
			s.root("unlink", "new/in")
			for _, n := range []string{"p", "q", "new"} {
				s.root("unlink", n)
				s.root("rmdir", n)
			}
		}
	})
	script("renames", func(s *scripted) {
		for _, from := range kinds {
			for _, to := range kinds {
				s.add(maker(from, "from", 0o644), maker(to, "to", 0o644))
				s.root("rename", "from", "to")
				for _, n := range []string{"from", "to"} {
					s.root("stat", n)
					s.root("unlink", n)
					s.root("rmdir", n)
				}
			}
		}
		s.root("create", "f", 0o644)
		s.root("link", "f", "g")
		s.root("rename", "f", "g")
		s.root("stat", "f")
		s.root("stat", "g")
		s.seen("g", "unlink", "f")
		s.root("stat", "g")
	})
	script("permissions", func(s *scripted) {
		for _, mode := range []int{0o777, 0o755, 0o711, 0o733, 0o700, 0o500, 0o070, 0o007, 0} {
			for _, owner := range []int{0, alice, bob} {
				s.root("mkdir", "d", 0o777)
				s.root("create", "d/f", 0o644)
				s.root("mkdir", "d/sub", 0o755)
				s.root("chown", "d/f", alice, alice)
				s.root("chown", "d", owner, owner)
				s.root("chmod", "d", mode)
				for _, who := range [][]int{{alice, alice}, {carol, bob}, {carol, carol}} {
					uid, gids := who[0], who[1:]
					s.in(uid, gids, "stat", "d/f")
					s.in(uid, gids, "open", "d/f", unix.O_RDWR)
					s.in(uid, gids, "create", "d/new", 0o644)
					s.in(uid, gids, "stat", "d/new")
					s.in(uid, gids, "mkdir", "d/newdir", 0o755)
					s.in(uid, gids, "symlink", "x", "d/newlink")
					s.in(uid, gids, "mknod", "d/newfifo", unix.S_IFIFO|0o644)
					s.in(uid, gids, "mknod", "d/newblk", unix.S_IFBLK|0o644)
					s.in(uid, gids, "link", "d/f", "d/newhard")
					s.in(uid, gids, "rename", "d/f", "d/g")
					s.in(uid, gids, "rename", "d/g", "d/f")
					s.in(uid, gids, "chmod", "d/f", 0o640)
					s.in(uid, gids, "chown", "d/f", uid, gids[0])
					s.in(uid, gids, "truncate", "d/f", 1)
					s.in(uid, gids, "readdir", "d")
					s.in(uid, gids, "access", "d", unix.W_OK|unix.X_OK)
					s.in(uid, gids, "rmdir", "d/sub")
					s.in(uid, gids, "unlink", "d/new")
					for _, n := range []string{"new", "newlink", "newfifo", "newblk", "newhard"} {
						s.root("unlink", "d/"+n)
					}
					s.root("rmdir", "d/newdir")
					s.root("mkdir", "d/sub", 0o755)
				}
				s.root("unlink", "d/f")
				s.root("unlink", "d/g")
				s.root("rmdir", "d/sub")
				s.root("rmdir", "d")
			}
		}
	})
	script("owners", func(s *scripted) {
		s.root("mkdir", "d", 0o777)
		for _, k := range kinds {
			for _, mode := range []int{0o644, 0o6755, 0o6711, 0o2644, 0o7777} {
				st := maker(k, "d/x", mode)
				s.add(st)
				s.root("lchown", "d/x", alice, alice)
				s.root("chmod", "d/x", mode)
				s.root("stat", "d/x")
				for _, c := range [][4]int{{alice, alice, -1, -1}, {alice, alice, alice, -1}, {alice, alice, -1, bob}, {alice, alice, bob, -1}, {bob, bob, bob, bob}} {
					s.in(c[0], []int{c[1], carol}, "lchown", "d/x", c[2], c[3])
					s.root("stat", "d/x")
				}
				s.in(alice, []int{alice, carol}, "lchown", "d/x", -1, carol) // its own other group
				s.root("stat", "d/x")
				s.root("chmod", "d/x", mode)
				s.root("lchown", "d/x", 0, 0)
				s.root("stat", "d/x")
				s.root("lchown", "d/x", alice, bob)
				s.in(alice, []int{alice}, "chmod", "d/x", 0o2755) // not in that group
				s.root("stat", "d/x")
				s.in(bob, []int{bob}, "chmod", "d/x", 0o777)
				s.in(alice, []int{bob}, "chmod", "d/x", 0o2755)
				s.root("stat", "d/x")
				s.add(remover(k, "d/x"))
			}
		}
	})
	script("setid", func(s *scripted) {
		s.root("mkdir", "d", 0o777)
		s.root("chown", "d", alice, bob)
		s.root("chmod", "d", 0o2777)
		for _, k := range kinds {
			for _, who := range [][]int{{0, 0}, {alice, alice}, {carol, bob}, {carol, carol}} {
				for _, mode := range []int{0o755, 0o2755, 0o6755} {
					st := maker(k, "d/x", mode)
					st.uid, st.gids = who[0], who[1:]
					s.add(st)
					s.root("stat", "d/x")
					s.add(remover(k, "d/x"))
				}
			}
		}
		for _, mode := range []int{0o4777, 0o2777, 0o2767, 0o6777, 0o6666, 0o7777} {
			for _, who := range []int{0, alice, carol} {
				for _, how := range []string{"write", "truncate", "trunc", "ftruncate"} {
					s.root("create", "f", 0o666)
					s.root("write", "f", "something")
					s.root("chown", "f", alice, alice)
					s.root("chmod", "f", mode)
					s.root("stat", "f")
					gids := []int{who}
					switch how {
					case "write":
						s.in(who, gids, "write", "f", "x")
					case "truncate":
						s.in(who, gids, "truncate", "f", 2)
					case "trunc":
						s.in(who, gids, "open", "f", unix.O_WRONLY|unix.O_TRUNC)
					case "ftruncate":
						s.in(who, gids, "ftruncate", "f", unix.O_RDWR, 1)
					}
					s.root("stat", "f")
					s.root("unlink", "f")
				}
			}
		}
	})
	script("sticky", func(s *scripted) {
		for _, owner := range []int{alice, bob} {
			s.root("mkdir", "d", 0o777)
			s.root("chown", "d", owner, owner)
			s.root("chmod", "d", 0o1777)
			s.root("mkdir", "e", 0o777)
			for _, k := range kinds {
				for _, of := range []int{alice, bob, carol} {
					s.add(maker(k, "d/x", 0o777))
					s.root("lchown", "d/x", of, of)
					for _, who := range []int{alice, bob, carol} {
						s.as(who, "rename", "d/x", "d/y")
						s.as(who, "rename", "d/y", "d/x")
						s.as(who, "rename", "d/x", "e/x")
						s.as(who, "rename", "e/x", "d/x")
						s.as(who, "unlink", "d/x")
						s.as(who, "rmdir", "d/x")
						s.add(maker(k, "d/x", 0o777))
						s.root("lchown", "d/x", of, of)
					}
					for _, n := range []string{"d/x", "d/y", "e/x"} {
						s.root("unlink", n)
						s.root("rmdir", n)
					}
				}
			}
			s.root("rmdir", "d")
			s.root("rmdir", "e")
		}
	})
	script("opens", func(s *scripted) {
		for _, mode := range []int{0o600, 0o060, 0o006, 0o400, 0o200, 0o040, 0} {
			s.root("create", "f", 0o644)
			s.root("write", "f", "text")
			s.root("chown", "f", alice, bob)
			s.root("chmod", "f", mode)
			for _, who := range [][]int{{alice, alice}, {carol, bob}, {carol, carol}} {
				for _, flags := range []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_RDONLY | unix.O_TRUNC, unix.O_WRONLY | unix.O_TRUNC, unix.O_WRONLY | unix.O_APPEND,
					unix.O_CREAT | unix.O_RDWR, unix.O_RDONLY | unix.O_DIRECTORY, unix.O_PATH, unix.O_RDONLY | unix.O_NOATIME} {
					s.in(who[0], who[1:], "open", "f", flags)
					s.root("stat", "f")
				}
				for _, a := range []uint32{unix.R_OK, unix.W_OK, unix.X_OK} {
					s.in(who[0], who[1:], "access", "f", int(a))
				}
			}
			s.root("unlink", "f")
		}
		for i, flags := range []int{unix.O_WRONLY | unix.O_CREAT, unix.O_RDWR | unix.O_CREAT, unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND, unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC} {
			s.root("openwrite", fmt.Sprint("gone", i), flags)
		}
	})
	script("moves", func(s *scripted) {
		for _, d := range []string{"a", "b"} {
			s.root("mkdir", d, 0o755)
		}
		for _, k := range kinds {
			for _, watch := range []string{"a", "b", "a/x", "b/x", "b/x2"} {
				s.add(maker(k, "a/x", 0o755))
				s.seen(watch, "rename", "a/x", "b/x")
				s.seen(watch, "rename", "b/x", "b/x2")
				s.seen(watch, "rename", "b/x2", "b/x2")
				s.seen(watch, "link", "b/x2", "a/y")
				s.root("stat", "a")
				s.root("stat", "b")
				s.root("stat", "b/x2")
				s.root("sameparent", "b/x2", "b")
				s.root("unlink", "a/y")
				rm := remover(k, "b/x2")
				rm.watch = watch
				s.add(rm)
			}
		}
		s.root("mkdir", "a/deep", 0o755)
		s.root("mkdir", "a/deep/er", 0o755)
		s.root("rename", "a/deep/er", "b/er")
		s.root("sameparent", "b/er", "b")
		for _, n := range []string{"a", "a/deep", "b", "b/er"} {
			s.root("stat", n)
		}
	})
	script("slashes", func(s *scripted) {
		s.root("mkdir", "d", 0o755)
		s.root("create", "f", 0o644)
		s.root("symlink", "d", "l")
		for _, n := range []string{"d/", "f/", "l/", "new/", "d//", "l/.", "d/../f", "d/../d/.."} {
			s.root("stat", n)
			s.root("open", n, unix.O_RDONLY)
			s.root("open", n, unix.O_CREAT|unix.O_RDWR)
			s.root("mkdir", n, 0o755)
			s.root("unlink", n)
			s.root("symlink", "x", n)
			s.root("link", "f", n)
			s.root("rename", "f", n)
			s.root("rename", n, "other")
			s.root("rename", "other", n)
			s.root("readlink", n)
			s.root("truncate", n, 1)
			s.root("mknod", n, unix.S_IFIFO|0o644)
		}
		s.root("readdir", ".")
	})
	script("running", func(s *scripted) {
		for _, how := range []string{"write", "truncate", "trunc", "rename", "unlink"} {
			s.root("running", "prog", how)
			s.root("stat", "prog")
			s.root("unlink", "prog")
		}
	})
	script("sizes", func(s *scripted) {
		s.root("create", "f", 0o644)
		for _, n := range []int{0, 1, 4095, 4096, 4097, 1 << 20, 1 << 33, 8 << 40, 0, 123, -1, 1 << 62} {
			s.root("truncate", "f", n)
			s.root("stat", "f")
			s.root("ftruncate", "f", unix.O_RDWR, n)
			s.root("ftruncate", "f", unix.O_RDONLY, n)
			s.root("stat", "f")
		}
		s.root("write", "f", strings.Repeat("x", 10000))
		s.root("stat", "f")
	})
	return all
}
