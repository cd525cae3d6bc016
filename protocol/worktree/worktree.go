// Package worktree is how a tree of files goes between the host and the helper
// program in a sandbox, over the standard streams of a command: frames of a
// type byte, a 32-bit big-endian length and a payload of at most MaxFrame
// bytes.
//
// A scan: the host sends what it knows (FrameKnown, FrameIgnore), then
// FrameEnd; the helper answers with an entry for each file, parents first, the
// content of files after their entry, then FrameEnd. The helper is never more
// than Window bytes ahead of what the host has acknowledged (FrameAck).
//
// An unpacking: the host sends entries and removals, then FrameEnd; the helper
// answers with one FrameEnd when everything is on its disk.
package worktree

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Frame types.
const (
	FrameEntry   byte = 'E' // Entry; a file's content follows unless Same or Problem
	FrameData    byte = 'D' // a piece of content
	FrameClose   byte = 'C' // end of content; a payload says why it is not complete
	FrameRemove  byte = 'R' // a path to remove, with what is in it
	FrameKnown   byte = 'K' // Known: a file that the host has
	FrameIgnore  byte = 'I' // ignore patterns that hold everywhere, as lines
	FrameTracked byte = 'T' // a path that no ignore pattern hides
	FrameAck     byte = 'A' // 8 bytes: how many the host has taken of the stream
	FrameEnd     byte = 'Z' // end; a payload is an error, as text
)

const (
	// MaxFrame is the largest payload, in bytes.
	MaxFrame = 1 << 20
	// Piece is the usual size of FrameData, in bytes.
	Piece = 256 << 10
	// Window is how many bytes of a scan may be under way.
	Window = 16 << 20
	// MaxPath is the longest path, in bytes.
	MaxPath = 64 << 10
	// MaxDepth is how many folders may be inside each other.
	MaxDepth = 1024
)

// Kinds of an entry.
const (
	KindDir   byte = 'd'
	KindFile  byte = 'f'
	KindLink  byte = 'l'
	KindOther byte = 'o' // a device, FIFO or socket; it is only named
)

// Entry describes a file.
type Entry struct {
	Path    string // relative to the root; any bytes but NUL, see CheckPath
	Kind    byte
	Mode    uint32 // permissions, 07777
	MTime   int64  // ns since the epoch; 0 in an unpacking: now
	Target  string // of a link
	Stamp   string // opaque: equal stamps mean equal content; "": not known
	Same    bool   // the host has the content: it sent this stamp as known
	Problem string // why the file cannot be read
}

// Known is a file that the host has the content of.
type Known struct{ Path, Stamp string }

// ErrFrame reports bytes that are no frame of this package.
var ErrFrame = errors.New("malformed tree stream")

// CheckPath refuses what is no plain relative path: empty, absolute, with
// empty, "." or ".." parts, NUL bytes, too long or too deep.
func CheckPath(p string) error {
	switch {
	case p == "":
		return errors.New("empty path")
	case len(p) > MaxPath:
		return fmt.Errorf("a path of %d bytes", len(p))
	case strings.IndexByte(p, 0) >= 0:
		return fmt.Errorf("path %q holds a NUL", p)
	}
	depth := 0
	for part := range strings.SplitSeq(p, "/") {
		if part == "" || part == "." || part == ".." {
			return fmt.Errorf("path %q is not a plain relative one", p)
		}
		if len(part) > 255 {
			return fmt.Errorf("path %.80q… has a part of %d bytes", p, len(part))
		}
		depth++
	}
	if depth > MaxDepth {
		return fmt.Errorf("path %.80q… is %d folders deep", p, depth)
	}
	return nil
}

// AppendEntry appends the payload of an entry.
func AppendEntry(b []byte, e Entry) []byte {
	b = append(b, e.Kind, flag(e.Same))
	b = binary.BigEndian.AppendUint32(b, e.Mode)
	b = binary.BigEndian.AppendUint64(b, uint64(e.MTime))
	for _, s := range []string{e.Path, e.Target, e.Stamp, e.Problem} {
		b = appendText(b, s)
	}
	return b
}

// DecodeEntry reads the payload of an entry. It checks the form and the path.
func DecodeEntry(p []byte) (Entry, error) {
	var e Entry
	if len(p) < 14 || p[1] > 1 {
		return e, fmt.Errorf("%w: entry", ErrFrame)
	}
	e.Kind, e.Same = p[0], p[1] == 1
	e.Mode = binary.BigEndian.Uint32(p[2:])
	e.MTime = int64(binary.BigEndian.Uint64(p[6:]))
	p = p[14:]
	for _, s := range []*string{&e.Path, &e.Target, &e.Stamp, &e.Problem} {
		var err error
		if *s, p, err = text(p); err != nil {
			return e, err
		}
	}
	if len(p) != 0 || e.Mode > 0o7777 || strings.IndexByte("dflo", e.Kind) < 0 {
		return e, fmt.Errorf("%w: entry", ErrFrame)
	}
	if e.Kind == KindLink && (e.Target == "" || strings.IndexByte(e.Target, 0) >= 0) {
		return e, fmt.Errorf("%w: link %q", ErrFrame, e.Path)
	}
	if err := CheckPath(e.Path); err != nil {
		return e, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	return e, nil
}

// AppendKnown appends the payload of a known file.
func AppendKnown(b []byte, k Known) []byte { return appendText(appendText(b, k.Path), k.Stamp) }

// DecodeKnown reads the payload of a known file.
func DecodeKnown(p []byte) (k Known, err error) {
	if k.Path, p, err = text(p); err != nil {
		return k, err
	}
	if k.Stamp, p, err = text(p); err != nil {
		return k, err
	}
	if len(p) != 0 {
		return k, fmt.Errorf("%w: known file", ErrFrame)
	}
	return k, nil
}

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

func text(p []byte) (string, []byte, error) {
	if len(p) < 4 {
		return "", nil, fmt.Errorf("%w: text", ErrFrame)
	}
	n := binary.BigEndian.Uint32(p)
	if uint64(n) > uint64(len(p)-4) {
		return "", nil, fmt.Errorf("%w: text", ErrFrame)
	}
	return string(p[4 : 4+n]), p[4+n:], nil
}

// Writer writes frames. It is not safe for concurrent use.
type Writer struct {
	w   *bufio.Writer
	buf []byte
	n   uint64
}

// NewWriter returns a Writer with a buffer; call Flush.
func NewWriter(w io.Writer) *Writer { return &Writer{w: bufio.NewWriterSize(w, 256<<10)} }

// Frame writes one frame.
func (w *Writer) Frame(t byte, p []byte) error {
	if len(p) > MaxFrame {
		return fmt.Errorf("%w: a frame of %d bytes", ErrFrame, len(p))
	}
	var head [5]byte
	head[0] = t
	binary.BigEndian.PutUint32(head[1:], uint32(len(p)))
	if _, err := w.w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.w.Write(p)
	w.n += uint64(len(head) + len(p))
	return err
}

// Entry writes an entry.
func (w *Writer) Entry(e Entry) error {
	w.buf = AppendEntry(w.buf[:0], e)
	return w.Frame(FrameEntry, w.buf)
}

// Known writes a known file.
func (w *Writer) Known(k Known) error {
	w.buf = AppendKnown(w.buf[:0], k)
	return w.Frame(FrameKnown, w.buf)
}

// Ack acknowledges n bytes of the other direction.
func (w *Writer) Ack(n uint64) error {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	if err := w.Frame(FrameAck, b[:]); err != nil {
		return err
	}
	return w.Flush()
}

// End writes the last frame; an err is sent as its text.
func (w *Writer) End(err error) error {
	var p []byte
	if err != nil {
		p = []byte(err.Error())
		p = p[:min(len(p), 4096)]
	}
	if err := w.Frame(FrameEnd, p); err != nil {
		return err
	}
	return w.Flush()
}

// Flush writes what is buffered.
func (w *Writer) Flush() error { return w.w.Flush() }

// Written is the number of bytes of all frames so far.
func (w *Writer) Written() uint64 { return w.n }

// Reader reads frames. It is not safe for concurrent use.
type Reader struct {
	r   *bufio.Reader
	buf []byte
	n   uint64
}

// NewReader returns a Reader with a buffer.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 256<<10)} }

// Next reads a frame; the payload is good until the next call. The end of the
// stream is io.ErrUnexpectedEOF: a stream ends with FrameEnd.
func (r *Reader) Next() (t byte, p []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("%w: a frame of %d bytes", ErrFrame, n)
	}
	if cap(r.buf) < int(n) {
		r.buf = make([]byte, max(int(n), 64<<10))
	}
	r.buf = r.buf[:n]
	if _, err := io.ReadFull(r.r, r.buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	r.n += uint64(len(head)) + uint64(n)
	return head[0], r.buf, nil
}

// Taken is the number of bytes of all frames so far.
func (r *Reader) Taken() uint64 { return r.n }

// AckOf reads the payload of an acknowledgement.
func AckOf(p []byte) (uint64, error) {
	if len(p) != 8 {
		return 0, fmt.Errorf("%w: acknowledgement", ErrFrame)
	}
	return binary.BigEndian.Uint64(p), nil
}
