package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// lz4Frame puts one packed block into a legacy frame.
func lz4Frame(block []byte) []byte {
	out := binary.LittleEndian.AppendUint32(nil, lz4Magic)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(block)))
	return append(out, block...)
}

func TestLZ4(t *testing.T) {
	for _, c := range []struct {
		name  string
		block []byte
		want  string // "" = refused
	}{
		{"literals", []byte("\x50hello"), "hello"},
		{"overlapping match", []byte("\x1aa\x01\x00\x10b"), "a" + strings.Repeat("a", 14) + "b"},
		{"long literals", append([]byte{0xf0, 5}, bytes.Repeat([]byte("x"), 20)...), strings.Repeat("x", 20)},
		{"long match", []byte("\x1fa\x01\x00\x05\x10b"), "a" + strings.Repeat("a", 24) + "b"},
		{"distance zero", []byte("\x1aa\x00\x00\x10b"), ""},
		{"distance before the start", []byte("\x1aa\x02\x00\x10b"), ""},
		{"literals past the end", []byte("\xa0abc"), ""},
		{"cut in a distance", []byte("\x1aa\x01"), ""},
		{"endless length", append([]byte{0xf0}, bytes.Repeat([]byte{255}, 70_000)...), ""},
		{"more than a block", append([]byte("\x1fa\x01\x00"), bytes.Repeat([]byte{255}, 40_000)...), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := io.ReadAll(newLZ4Reader(bytes.NewReader(lz4Frame(c.block))))
			if c.want == "" && err == nil {
				t.Fatalf("took it as %q", got)
			}
			if c.want != "" && (err != nil || string(got) != c.want) {
				t.Fatalf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestLZ4Truncated(t *testing.T) {
	frame := lz4Frame([]byte("\x50hello"))
	for n := range len(frame) {
		if n == 4 {
			continue // an empty frame is one
		}
		if _, err := io.ReadAll(newLZ4Reader(bytes.NewReader(frame[:n]))); err == nil {
			t.Errorf("%d of %d bytes were taken as whole", n, len(frame))
		}
	}
}

// TestLZ4ForeignWriter unpacks what the reference program packed.
func TestLZ4ForeignWriter(t *testing.T) {
	path, err := exec.LookPath("lz4")
	if err != nil {
		t.Skip("lz4 is missing: apt-get install lz4")
	}
	var want bytes.Buffer
	for n := range 3 << 20 {
		want.WriteString([]string{"kernel", "\x00\x00\x00\x00", "x", "\x90"}[n*n%7%4])
	}
	cmd := exec.Command(path, "-l", "-9", "-c")
	cmd.Stdin = bytes.NewReader(want.Bytes())
	packed, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(newLZ4Reader(bytes.NewReader(packed)))
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Fatalf("%d bytes, %v; want %d bytes", len(got), err, want.Len())
	}
}

func FuzzLZ4(f *testing.F) {
	f.Add(lz4Frame([]byte("\x1fa\x01\x00\x05\x10b")))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := io.Copy(io.Discard, io.LimitReader(newLZ4Reader(bytes.NewReader(data)), 64<<20))
		if err != nil && !errors.Is(err, errLZ4) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	})
}
