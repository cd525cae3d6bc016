package image

import (
	"archive/tar"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// tinyRoot writes the root file system of the image "tiny": a static busybox and what programs expect to find.
func (l *Library) tinyRoot(ctx context.Context, w io.Writer, progress Progress) error {
	tmp, err := newTempDir(l.cacheDir())
	if err != nil {
		return err
	}
	defer tmp.discard()
	progress.report("looking for busybox", -1)
	busybox, err := findBusybox(ctx, tmp.path, progress)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	applets, err := busyboxApplets(ctx, busybox)
	if err != nil {
		return err
	}
	return writeTiny(w, data, applets)
}

// findBusybox returns a static busybox: the host's, or the one of the package busybox-static, fetched.
func findBusybox(ctx context.Context, dir string, progress Progress) (string, error) {
	if path, err := lookTool("busybox"); err == nil && isStatic(path) {
		return path, nil
	}
	const hint = "install package busybox-static"
	a, err := newApt(dir, progress)
	if err != nil {
		return "", fmt.Errorf("there is no static busybox here and %w: %s", err, hint)
	}
	_, root, err := a.fetch(ctx, func(ctx context.Context) (debPackage, error) { return a.show(ctx, "busybox-static") })
	if err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", fmt.Errorf("there is no static busybox here and none can be fetched: %w; check the network, or %s", err, hint)
	}
	for _, path := range []string{"bin/busybox", "usr/bin/busybox"} {
		if path = filepath.Join(root, path); isStatic(path) {
			return path, nil
		}
	}
	return "", errors.New("package busybox-static holds no static busybox")
}

func isStatic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// busyboxApplets returns the paths of the applets, without a leading slash.
func busyboxApplets(ctx context.Context, busybox string) ([]string, error) {
	out, err := tool{name: busybox, args: []string{"--list-full"}}.output(ctx)
	if err != nil {
		return nil, err
	}
	var applets []string
	for _, name := range strings.Fields(out) {
		name = path.Clean("/" + name)[1:]
		if !strings.Contains(name, "/") { // a build without install paths
			name = "bin/" + name
		}
		if name != "bin/busybox" {
			applets = append(applets, name)
		}
	}
	if !slices.Contains(applets, "bin/sh") {
		return nil, fmt.Errorf("%s has no shell", busybox)
	}
	return applets, nil
}

// The user of built-in images.
const (
	devUID = 1000
	devGID = 1000
)

var tinyFiles = map[string]string{
	"etc/passwd":  "root:x:0:0:root:/root:/bin/sh\ndev:x:1000:1000:dev:/home/dev:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
	"etc/group":   "root:x:0:\ntty:x:5:\ndev:x:1000:\nnogroup:x:65534:\n",
	"etc/shells":  "/bin/sh\n",
	"etc/hosts":   "127.0.0.1\tlocalhost\n::1\tlocalhost\n",
	"etc/profile": tinyProfile,
	"etc/os-release": `PRETTY_NAME="msb tiny (BusyBox)"
NAME="msb tiny"
ID=msb-tiny
`,
}

const tinyProfile = `export PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin
export PS1='\u@\h:\w\$ '
export PAGER=less EDITOR=vi
umask 022
`

// writeTiny writes the tar. The same busybox gives the same bytes.
func writeTiny(w io.Writer, busybox []byte, applets []string) error {
	t := &rootWriter{tar: tar.NewWriter(w), dirs: map[string]bool{}}
	for _, d := range []struct {
		name string
		mode int64
		id   int
	}{
		{"bin", 0o755, 0}, {"sbin", 0o755, 0}, {"usr", 0o755, 0}, {"usr/bin", 0o755, 0}, {"usr/sbin", 0o755, 0},
		{"usr/local", 0o755, 0}, {"usr/local/bin", 0o755, 0}, {"usr/local/sbin", 0o755, 0}, {"lib", 0o755, 0},
		{"etc", 0o755, 0}, {"dev", 0o755, 0}, {"proc", 0o555, 0}, {"sys", 0o555, 0}, {"run", 0o755, 0},
		{"tmp", 0o1777, 0}, {"var", 0o755, 0}, {"var/log", 0o755, 0}, {"var/tmp", 0o1777, 0}, {"mnt", 0o755, 0},
		{"opt", 0o755, 0}, {"srv", 0o755, 0}, {"root", 0o700, 0}, {"home", 0o755, 0}, {"home/dev", 0o755, devUID},
		{"work", 0o755, devUID},
	} {
		t.dir(d.name, d.mode, d.id)
	}
	t.file("bin/busybox", 0o755, busybox)
	for _, name := range applets {
		t.parents(name)
		t.link(name, "/bin/busybox")
	}
	for _, name := range slices.Sorted(maps.Keys(tinyFiles)) {
		t.file(name, 0o644, []byte(tinyFiles[name]))
	}
	return t.close()
}

// rootWriter writes the entries of a root file system tar; the first error stays.
type rootWriter struct {
	tar  *tar.Writer
	dirs map[string]bool
	err  error
}

func (t *rootWriter) add(h tar.Header, data []byte) {
	if t.err != nil {
		return
	}
	h.ModTime, h.Size = time.Unix(0, 0), int64(len(data))
	if t.err = t.tar.WriteHeader(&h); t.err == nil {
		_, t.err = t.tar.Write(data)
	}
}

func (t *rootWriter) dir(name string, mode int64, id int) {
	t.dirs[name] = true
	t.add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, Uid: id, Gid: id}, nil)
}

func (t *rootWriter) parents(name string) {
	if dir := path.Dir(name); dir != "." && !t.dirs[dir] {
		t.parents(dir)
		t.dir(dir, 0o755, 0)
	}
}

func (t *rootWriter) file(name string, mode int64, data []byte) {
	t.add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, data)
}

func (t *rootWriter) link(name, target string) {
	t.add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

func (t *rootWriter) close() error {
	if t.err != nil {
		return t.err
	}
	return t.tar.Close()
}
