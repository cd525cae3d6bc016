package image

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// cpioEntry is what a reader of the archive sees.
type cpioEntry struct {
	name         string
	mode         uint64
	major, minor uint64
	data         []byte
}

// readCPIO is a reader of the newc format that trusts nothing.
func readCPIO(t *testing.T, archive []byte) []cpioEntry {
	t.Helper()
	var entries []cpioEntry
	for at := 0; ; {
		if at+110 > len(archive) || string(archive[at:at+6]) != "070701" {
			t.Fatalf("no header at %d", at)
		}
		field := func(n int) uint64 {
			v, err := strconv.ParseUint(string(archive[at+6+8*n:at+14+8*n]), 16, 32)
			if err != nil {
				t.Fatalf("header at %d, field %d: %v", at, n, err)
			}
			return v
		}
		nameLen, size := int(field(11)), int(field(6))
		name := string(archive[at+110 : at+110+nameLen-1])
		if archive[at+110+nameLen-1] != 0 {
			t.Fatalf("name %q has no NUL", name)
		}
		body := (at + 110 + nameLen + 3) &^ 3
		if name == cpioTrailer {
			return entries
		}
		entries = append(entries, cpioEntry{name, field(1), field(9), field(10), archive[body : body+size]})
		at = (body + size + 3) &^ 3
	}
}

func TestCPIO(t *testing.T) {
	var out bytes.Buffer
	c := newCPIOWriter(&out)
	c.dir("dev", 0o755)
	c.charDev("dev/console", 0o600, 5, 1)
	for n := range 5 { // every padding
		c.file(fmt.Sprintf("f%s", strings.Repeat("x", n)), 0o644, bytes.Repeat([]byte("d"), n))
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	got := readCPIO(t, out.Bytes())
	if len(got) != 7 {
		t.Fatalf("%d entries, want 7", len(got))
	}
	if e := got[1]; e.name != "dev/console" || e.mode != 0o20600 || e.major != 5 || e.minor != 1 {
		t.Errorf("console is %+v", e)
	}
	if e := got[0]; e.mode != 0o40755 {
		t.Errorf("directory has mode %o", e.mode)
	}
	for n, e := range got[2:] {
		if e.mode != 0o100644 || string(e.data) != strings.Repeat("d", n) {
			t.Errorf("file %d is %+v", n, e)
		}
	}
}

// TestCPIOForeignReader has another program read what we write.
func TestCPIOForeignReader(t *testing.T) {
	var cmd *exec.Cmd
	if path, err := exec.LookPath("cpio"); err == nil {
		cmd = exec.Command(path, "-it", "--quiet")
	} else if path, err := exec.LookPath("busybox"); err == nil {
		cmd = exec.Command(path, "cpio", "-t")
	} else {
		t.Skip("neither cpio nor busybox is installed")
	}
	var out bytes.Buffer
	c := newCPIOWriter(&out)
	c.dir("modules", 0o755)
	c.file("modules/a.ko", 0o644, []byte("abc"))
	c.charDev("null", 0o666, 1, 3)
	c.file("init", 0o755, make([]byte, 100_001))
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = &out
	names, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Fields(string(names)), []string{"modules", "modules/a.ko", "null", "init"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("it reads %q, want %q", got, want)
	}
}

func TestCPIORefusesBadNames(t *testing.T) {
	for _, name := range []string{"", "/init", cpioTrailer} {
		c := newCPIOWriter(&bytes.Buffer{})
		c.file(name, 0o644, nil)
		if c.close() == nil {
			t.Errorf("name %q was taken", name)
		}
	}
}

type fullDisk struct{ left int }

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, fmt.Errorf("disk full")
	}
	return len(p), nil
}

func TestCPIOReportsWriteErrors(t *testing.T) {
	c := newCPIOWriter(&fullDisk{left: 200})
	c.file("a", 0o644, make([]byte, 500))
	c.file("b", 0o644, make([]byte, 500))
	if err := c.close(); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("error is %v", err)
	}
}
