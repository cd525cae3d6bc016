package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// entry is one file of an archive that a test makes.
type entry struct {
	tar.Header
	content string
}

func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size = int64(len(e.content))
		if e.Mode == 0 {
			e.Mode = 0o644
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, content string) entry { return entry{tar.Header{Name: name}, content} }

// mounted mounts an image for looking at.
func mounted(t *testing.T, image string) string {
	t.Helper()
	loop := attach(t, image)
	defer loop.Close()
	dir := t.TempDir()
	if err := unix.Mount(loop.Name(), dir, "ext4", unix.MS_RDONLY|unix.MS_NODEV, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	return dir
}

func TestUnpackKeepsWhatTarSays(t *testing.T) {
	needTools(t)
	image := newImage(t, 32)
	old := time.Unix(1_000_000_000, 500_000_000)
	capability := string([]byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	sparse := strings.Repeat("\x00", 8<<20) + "end"
	got := unpack(t, image, bytes.NewReader(archive(t,
		entry{tar.Header{Name: "opt/", Typeflag: tar.TypeDir, Mode: 0o750, ModTime: old, Uid: 7, Gid: 8, Format: tar.FormatPAX}, ""},
		entry{tar.Header{Name: "opt/tool", Mode: 0o4755, Uid: 1234567, Gid: 55, ModTime: old, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"SCHILY.xattr.user.note": "hello", "SCHILY.xattr.security.capability": capability}}, "#!tool"},
		entry{tar.Header{Name: "opt/hard", Typeflag: tar.TypeLink, Linkname: "opt/tool"}, ""},
		entry{tar.Header{Name: "opt/soft", Typeflag: tar.TypeSymlink, Linkname: "../nowhere", Uid: 9}, ""},
		entry{tar.Header{Name: "opt/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666}, ""},
		entry{tar.Header{Name: "opt/fifo", Typeflag: tar.TypeFifo}, ""},
		file("opt/sparse", sparse),
		file("opt/"+strings.Repeat("n", 255), "long name"),
		file("opt/twice", "first"), file("opt/twice", "second"),
		file("opt/space and \xff byte", "odd"),
	)))
	if got != "ok\n" {
		t.Fatal(got)
	}
	dir := mounted(t, image)
	var st unix.Stat_t
	stat := func(name string) unix.Stat_t {
		t.Helper()
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return st
	}
	if st := stat("opt/tool"); st.Mode != unix.S_IFREG|0o4755 || st.Uid != 1234567 || st.Gid != 55 || st.Nlink != 2 || st.Mtim.Sec != old.Unix() || st.Mtim.Nsec != 500_000_000 {
		t.Errorf("tool: %+v", st)
	}
	if st := stat("opt"); st.Mode != unix.S_IFDIR|0o750 || st.Uid != 7 || st.Mtim.Sec != old.Unix() {
		t.Errorf("folder: %+v", st)
	}
	if st := stat("opt/soft"); st.Uid != 9 {
		t.Errorf("link: %+v", st)
	}
	if st := stat("opt/null"); st.Mode != unix.S_IFCHR|0o666 || st.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("device: %+v", st)
	}
	if st := stat("opt/sparse"); st.Size != int64(len(sparse)) || st.Blocks*512 > 1<<20 {
		t.Errorf("sparse: size %d, %d blocks", st.Size, st.Blocks)
	}
	buf := make([]byte, 64)
	for name, want := range map[string]string{"user.note": "hello", "security.capability": capability} {
		n, err := unix.Lgetxattr(filepath.Join(dir, "opt/tool"), name, buf)
		if err != nil || string(buf[:n]) != want {
			t.Errorf("%s: %q %v", name, buf[:n], err)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "opt/twice")); string(b) != "second" {
		t.Errorf("twice: %q", b)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "opt/space and \xff byte")); string(b) != "odd" {
		t.Errorf("odd name: %q", b)
	}
}

func TestUnpackAddsWhatASandboxNeeds(t *testing.T) {
	needTools(t)
	const agent = "msb-turn:x:990:990::/nonexistent:/bin/false\n"
	tests := []struct {
		name    string
		entries []entry
		passwd  string
		home    [2]uint32
	}{
		{"nothing there", []entry{file("bin/sh", "")},
			"root:x:0:0:root:/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/sh\n" + agent, [2]uint32{1000, 1000}},
		{"other users", []entry{file("etc/passwd", "root:x:0:0::/root:/bin/ash\nubuntu:x:1000:1000::/home/ubuntu:/bin/sh"),
			file("etc/shadow", "root:*:1::::::\n"), {tar.Header{Name: "bin/bash", Mode: 0o755}, "x"}},
			"root:x:0:0::/root:/bin/ash\nubuntu:x:1000:1000::/home/ubuntu:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/bash\n" + agent, [2]uint32{1000, 1000}},
		{"dev is there", []entry{file("etc/passwd", "root:x:0:0::/root:/bin/sh\ndev:x:500:501::/home/dev:/bin/sh\n")},
			"root:x:0:0::/root:/bin/sh\ndev:x:500:501::/home/dev:/bin/sh\n" + agent, [2]uint32{500, 501}},
		{"the agent's number is taken", []entry{file("etc/passwd", "root:x:0:0::/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/sh\nother:x:990:7::/:/bin/sh\n")},
			"root:x:0:0::/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/sh\nother:x:990:7::/:/bin/sh\n", [2]uint32{1000, 1000}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			image := newImage(t, 16)
			if got := unpack(t, image, bytes.NewReader(archive(t, tt.entries...))); got != "ok\n" {
				t.Fatal(got)
			}
			dir := mounted(t, image)
			if b, err := os.ReadFile(filepath.Join(dir, "etc/passwd")); err != nil || string(b) != tt.passwd {
				t.Errorf("passwd %q %v", b, err)
			}
			for name, want := range map[string]string{"etc/hosts": "localhost", "etc/resolv.conf": "nameserver 10.0.2.3", "etc/hostname": "sandbox", "etc/group": "dev:x:1000:"} {
				if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(b), want) {
					t.Errorf("%s: %q %v", name, b, err)
				}
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(dir, "home/dev"), &st); err != nil || [2]uint32{st.Uid, st.Gid} != tt.home {
				t.Errorf("home: %d:%d %v", st.Uid, st.Gid, err)
			}
			if err := unix.Stat(filepath.Join(dir, "tmp"), &st); err != nil || st.Mode&0o7777 != 0o1777 {
				t.Errorf("tmp: %o %v", st.Mode, err)
			}
		})
	}
}

// Nothing in an archive reaches past the image: not a name, not a link, not a device that it brings along.
func TestUnpackStaysInside(t *testing.T) {
	needTools(t)
	outside := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	decoy := attach(t, newImage(t, 1)) // a disk of the host
	defer decoy.Close()
	var disk unix.Stat_t
	if err := unix.Fstat(int(decoy.Fd()), &disk); err != nil {
		t.Fatal(err)
	}
	image := newImage(t, 16)
	link := func(name, target string) entry {
		return entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}, ""}
	}
	got := unpack(t, image, bytes.NewReader(archive(t,
		file("../../../../.."+outside, "evil"),
		file(outside+".abs", "evil"),
		link("escape", "../../../.."+filepath.Dir(outside)),
		file("escape/victim", "evil"),
		link("through", outside),
		file("through", "evil"),
		link("etc/hosts", outside),
		link("etc/passwd", "/disk"),
		entry{tar.Header{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: int64(unix.Major(disk.Rdev)), Devminor: int64(unix.Minor(disk.Rdev)), Mode: 0o666}, ""},
		entry{tar.Header{Name: "etc/group", Typeflag: tar.TypeFifo}, ""},
		link("var", "../../../../../tmp"),
		link("loop", "loop"),
	)))
	if !strings.HasPrefix(got, "error: /etc/passwd") {
		t.Errorf("an image whose users cannot be read: %q", got)
	}
	if b, _ := os.ReadFile(outside); string(b) != "untouched" {
		t.Errorf("the file outside holds %q", b)
	}
	if _, err := os.Lstat(outside + ".abs"); err == nil {
		t.Error("a file was made outside")
	}
}

func TestUnpackReportsFailures(t *testing.T) {
	needTools(t)
	good := archive(t, file("a", "x"))
	tests := []struct {
		name string
		mib  int
		data io.Reader
		want string
	}{
		{"empty", 8, strings.NewReader(""), "empty"},
		{"not a tar", 8, strings.NewReader(strings.Repeat("not a tar ", 200)), "read the archive"},
		{"cut off in a file", 8, bytes.NewReader(archive(t, file("a", strings.Repeat("x", 4096)))[:1024]), "unexpected EOF"},
		{"full disk", 4, bytes.NewReader(archive(t, file("big", strings.Repeat("x", 8<<20)))), "no space left"},
		{"hard link to nothing", 8, bytes.NewReader(archive(t, entry{tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "nothing"}, ""})), "no such file"},
		{"link that leads to itself", 8, bytes.NewReader(archive(t, entry{tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "l"}, ""}, file("l/x", ""))), "make folder"},
		{"what follows the end is padding", 8, io.MultiReader(bytes.NewReader(good), strings.NewReader(strings.Repeat("\x00", 1<<20))), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := unpack(t, newImage(t, tt.mib), tt.data)
			switch {
			case tt.want == "" && got != "ok\n":
				t.Error(got)
			case tt.want != "" && (!strings.HasPrefix(got, "error: ") || !strings.Contains(got, tt.want)):
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	if got := unpack(t, "/dev/null", bytes.NewReader(good)); !strings.HasPrefix(got, "error: ") {
		t.Error(got)
	}
	if got := unpack(t, filepath.Join(t.TempDir(), "missing"), bytes.NewReader(good)); !strings.HasPrefix(got, "error: ") {
		t.Error(got)
	}
}
