package turn

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// maxLine bounds a line of a transcript, in bytes. An event is at most a frame,
// and its encoding on disk at most a few times that.
const maxLine = 8 << 20

// indexStep is the number of lines between two remembered offsets.
const indexStep = 256

// Transcript is the append-only record of a session: one Event a line. Readers
// read the file, so that however slow one is, nothing piles up in memory. It is
// safe for concurrent use.
type Transcript struct {
	path string
	f    *os.File

	mu      sync.Mutex
	size    int64   // of whole lines
	seq     uint64  // lines
	index   []int64 // offset of line 1 + i*indexStep
	last    Event
	changed chan struct{} // closed when something was appended
	closed  error         // what readers get at the end
	buf     bytes.Buffer
}

// OpenTranscript opens a transcript for appending and readers, and makes it if
// it is not there. A last line that a crash has torn is cut off.
func OpenTranscript(path string) (*Transcript, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("transcript: %w", err)
	}
	t := &Transcript{path: path, f: f, changed: make(chan struct{})}
	if err := t.scan(); err != nil {
		f.Close()
		return nil, fmt.Errorf("transcript %s: %w", path, err)
	}
	if err := f.Truncate(t.size); err != nil {
		f.Close()
		return nil, fmt.Errorf("transcript %s: %w", path, err)
	}
	return t, nil
}

// scan finds the whole lines, and the last event.
func (t *Transcript) scan() error {
	in := bufio.NewReaderSize(t.f, 64<<10)
	var off, last int64
	for {
		part, err := in.ReadSlice('\n')
		off += int64(len(part))
		switch err {
		case nil:
			if t.seq%indexStep == 0 {
				t.index = append(t.index, t.size)
			}
			last, t.size = t.size, off
			t.seq++
		case bufio.ErrBufferFull:
		case io.EOF:
			line := make([]byte, min(t.size-last, maxLine))
			if _, err := t.f.ReadAt(line, last); err != nil {
				return err
			}
			if json.Unmarshal(line, &t.last) != nil {
				t.last = Event{} // readers report it
			}
			return nil
		default:
			return err
		}
	}
}

// Append writes an event as the next line and gives it its Schema, Seq and
// Time. With durable it returns when the line is on the disk. After an error,
// such as a full disk, the transcript is as before.
func (t *Transcript) Append(e Event, durable bool) (Event, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return e, fmt.Errorf("transcript: %w", os.ErrClosed)
	}
	e.Schema, e.Seq = Schema, t.seq+1
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	t.buf.Reset()
	enc := json.NewEncoder(&t.buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(e) // ends the line
	if err == nil && t.buf.Len() > maxLine {
		err = fmt.Errorf("an event of %d bytes is too large", t.buf.Len())
	}
	if err != nil {
		return e, fmt.Errorf("transcript: %w", err)
	}
	if _, err := t.f.WriteAt(t.buf.Bytes(), t.size); err != nil {
		t.f.Truncate(t.size)
		return e, fmt.Errorf("transcript: %w", err)
	}
	if t.seq%indexStep == 0 {
		t.index = append(t.index, t.size)
	}
	t.size += int64(t.buf.Len())
	t.seq++
	t.last = e
	if t.buf.Cap() > 1<<20 {
		t.buf = bytes.Buffer{}
	}
	close(t.changed)
	t.changed = make(chan struct{})
	if durable {
		if err := t.f.Sync(); err != nil {
			return e, fmt.Errorf("transcript: %w", err)
		}
	}
	return e, nil
}

// Seq is the number of events, Size their bytes.
func (t *Transcript) Seq() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seq
}

// Size is the length of the transcript in bytes.
func (t *Transcript) Size() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.size
}

// Last is the newest event; zero if there is none.
func (t *Transcript) Last() Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// Close ends the transcript; readers get io.EOF when they have read it all.
func (t *Transcript) Close() error { return t.CloseWith(io.EOF) }

// CloseWith is Close with another error for the readers.
func (t *Transcript) CloseWith(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return nil
	}
	t.closed = err
	close(t.changed)
	return t.f.Close()
}

// Closed tells whether it takes no more events.
func (t *Transcript) Closed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed != nil
}

// Reader reads a transcript from an event on. It is used by one goroutine.
type Reader struct {
	t    *Transcript
	f    *os.File
	in   *bufio.Reader
	seq  uint64 // last one read
	line []byte
}

// tail reads what is certain of a transcript: its whole lines never change,
// what follows them may.
type tail struct {
	t   *Transcript
	f   *os.File
	off int64
}

func (r *tail) Read(p []byte) (int, error) {
	n := min(int64(len(p)), r.t.Size()-r.off)
	if n <= 0 {
		return 0, io.EOF
	}
	read, err := r.f.ReadAt(p[:n], r.off)
	r.off += int64(read)
	return read, err
}

// Read returns a reader of the events after seq.
func (t *Transcript) Read(seq uint64) (*Reader, error) {
	f, err := os.Open(t.path)
	if err != nil {
		return nil, fmt.Errorf("transcript: %w", err)
	}
	t.mu.Lock()
	seq = min(seq, t.seq)
	from := &tail{t: t, f: f, off: t.size}
	r := &Reader{t: t, f: f, seq: t.seq}
	if n := int(seq / indexStep); n < len(t.index) {
		r.seq, from.off = uint64(n)*indexStep, t.index[n]
	}
	t.mu.Unlock()
	r.in = bufio.NewReaderSize(from, 64<<10)
	for r.seq < seq {
		if err := r.readLine(); err != nil {
			f.Close()
			return nil, fmt.Errorf("transcript: %w", err)
		}
	}
	return r, nil
}

// Next waits for the next event. It returns io.EOF at the end of a transcript
// that was closed. A damaged line is an event of kind error that says so.
func (r *Reader) Next(ctx context.Context) (Event, error) {
	for {
		r.t.mu.Lock()
		seq, changed, closed := r.t.seq, r.t.changed, r.t.closed
		r.t.mu.Unlock()
		if r.seq < seq {
			return r.read()
		}
		if closed != nil {
			return Event{}, closed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// TryNext is Next that does not wait; ok is false when there is no event.
func (r *Reader) TryNext() (e Event, ok bool, err error) {
	if r.seq >= r.t.Seq() {
		return Event{}, false, nil
	}
	e, err = r.read()
	return e, err == nil, err
}

func (r *Reader) read() (Event, error) {
	if err := r.readLine(); err != nil {
		return Event{}, fmt.Errorf("transcript: %w", err)
	}
	return parseLine(r.line, r.seq), nil
}

func (r *Reader) readLine() error {
	r.line = r.line[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		if len(r.line)+len(part) <= maxLine {
			r.line = append(r.line, part...)
		}
		switch {
		case err == nil:
			r.seq++
			return nil
		case err == io.EOF && len(part) == 0 && len(r.line) == 0:
			return io.ErrUnexpectedEOF
		case err != bufio.ErrBufferFull:
			return err
		}
	}
}

// Close ends the reader.
func (r *Reader) Close() error { return r.f.Close() }

// parseLine decodes a line. Its number is its place, whatever it says.
func parseLine(line []byte, seq uint64) Event {
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		e = Event{Schema: Schema}
		e.Kind, e.Err = "error", fmt.Sprintf("line %d of the transcript is damaged", seq)
	}
	e.Seq = seq
	return e
}

// ReadTranscript reads a transcript that this process has not open, up to its
// last whole line, and calls each for every event until it returns false.
func ReadTranscript(path string, each func(Event) bool) error {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("transcript: %w", err)
	}
	defer f.Close()
	r := &Reader{f: f, in: bufio.NewReaderSize(f, 64<<10)}
	for {
		err := r.readLine()
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("transcript: %w", err)
		}
		if !each(parseLine(r.line, r.seq)) {
			return nil
		}
	}
}
