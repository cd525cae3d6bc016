package image

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// elfFile builds a small ELF64 file with one section .modinfo and, if it is not nil, a PT_NOTE segment.
func elfFile(modinfo string, note []byte) []byte {
	const header, progHeader, sectHeader = 64, 56, 64
	names := "\x00.modinfo\x00.shstrtab\x00"
	progs := 0
	if note != nil {
		progs = 1
	}
	at := header + progs*progHeader
	noteAt, infoAt := at, at+len(note)
	namesAt := infoAt + len(modinfo)
	sectAt := (namesAt + len(names) + 7) &^ 7
	le := binary.LittleEndian
	out := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	out = le.AppendUint16(out, 1)  // relocatable
	out = le.AppendUint16(out, 62) // x86-64
	out = le.AppendUint32(out, 1)
	out = le.AppendUint64(out, 0)
	out = le.AppendUint64(out, header)
	out = le.AppendUint64(out, uint64(sectAt))
	out = le.AppendUint32(out, 0)
	for _, v := range []int{header, progHeader, progs, sectHeader, 3, 2} {
		out = le.AppendUint16(out, uint16(v))
	}
	if progs > 0 {
		out = le.AppendUint32(out, 4) // PT_NOTE
		out = le.AppendUint32(out, 4)
		for _, v := range []int{noteAt, 0, 0, len(note), len(note), 4} {
			out = le.AppendUint64(out, uint64(v))
		}
	}
	out = append(append(append(out, note...), modinfo...), names...)
	out = append(out, make([]byte, sectAt-len(out))...)
	out = append(out, make([]byte, sectHeader)...)
	for _, s := range []struct{ name, kind, at, size int }{{1, 1, infoAt, len(modinfo)}, {10, 3, namesAt, len(names)}} {
		out = le.AppendUint32(out, uint32(s.name))
		out = le.AppendUint32(out, uint32(s.kind))
		for _, v := range []int{0, 0, s.at, s.size} {
			out = le.AppendUint64(out, uint64(v))
		}
		out = le.AppendUint64(out, 0)
		out = le.AppendUint64(out, 1)
		out = le.AppendUint64(out, 0)
	}
	return out
}

// koFile is a kernel module with the entries of its .modinfo.
func koFile(entries ...string) []byte {
	return elfFile(strings.Join(entries, "\x00")+"\x00", nil)
}

// pvhNote is the note that QEMU finds the entry of a vmlinux by.
func pvhNote() []byte {
	out := binary.LittleEndian.AppendUint32(nil, 4)
	out = binary.LittleEndian.AppendUint32(out, 8)
	out = binary.LittleEndian.AppendUint32(out, 18)
	return append(out, "Xen\x00\x50\x08\x00\x01\x00\x00\x00\x00"...)
}

// bzImage builds a kernel file around a packed payload.
func bzImage(release string, payload []byte, sizeSuffix bool) []byte {
	out := make([]byte, 3*512)
	out[bzSetupSects] = 2
	copy(out[bzMagic:], "HdrS")
	binary.LittleEndian.PutUint16(out[bzVersion:], 0x20f)
	binary.LittleEndian.PutUint16(out[bzRelease:], 0x400-0x200)
	copy(out[0x400:], release+" (builder@host) #1 SMP\x00")
	if sizeSuffix {
		payload = append(payload, 0, 0, 0, 0)
	}
	binary.LittleEndian.PutUint32(out[bzPayload:], 16)
	binary.LittleEndian.PutUint32(out[bzPayloadSize:], uint32(len(payload)))
	return append(append(out, make([]byte, 16)...), payload...)
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// packedWith packs data with a program; the test is skipped without it.
func packedWith(t *testing.T, data []byte, name string, args ...string) []byte {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// writeTree writes files below a new directory.
func writeTree(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func testLibrary(t *testing.T) *Library {
	t.Helper()
	l, err := Open(filepath.Join(t.TempDir(), "library"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// noTraces fails when something unfinished is left in the library.
func noTraces(t *testing.T, l *Library) {
	t.Helper()
	for _, dir := range []string{l.imagesDir(), l.kernelsDir(), l.cacheDir()} {
		left, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}
