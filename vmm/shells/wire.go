package shells

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Kinds of frames.
const (
	kindRequest = 'q'
	kindAnswer  = 'a'
	kindInput   = 'i'
	kindOutput  = 'o'
	kindSize    = 's'
	kindList    = 'l'
	kindEnd     = 'e'
)

const (
	headerSize = 5
	// maxFrame bounds the payload of a frame, in bytes.
	maxFrame = 64 << 10
)

// Operations of a request.
const (
	opList   = "list"
	opWatch  = "watch"
	opOpen   = "open"
	opAttach = "attach"
	opEnd    = "end"
)

// Request is the first frame of a connection.
type Request struct {
	Op   string   `json:"op"`
	ID   uint32   `json:"id,omitempty"` // attach, end; 0 to attach: the one that was used last
	Argv []string `json:"argv,omitempty"`
	Env  []string `json:"env,omitempty"`
	User string   `json:"user,omitempty"`
	Cwd  string   `json:"cwd,omitempty"`
	Rows uint16   `json:"rows,omitempty"`
	Cols uint16   `json:"cols,omitempty"`
}

// Answer is the first frame that comes back.
type Answer struct {
	Error  string `json:"error,omitempty"`
	Code   string `json:"code,omitempty"` // of an error that callers tell apart
	Shells []Info `json:"shells,omitempty"`
}

// Info is what is known of a shell. Title is foreign text.
type Info struct {
	ID       uint32    `json:"id"`
	Title    string    `json:"title,omitempty"`
	User     string    `json:"user,omitempty"`
	Started  time.Time `json:"started"`
	Used     time.Time `json:"used"` // the last time somebody typed, came or left
	Attached int       `json:"attached"`
	Rows     uint16    `json:"rows"`
	Cols     uint16    `json:"cols"`
	Kept     int       `json:"kept"` // bytes that an attaching front end is shown
	Ended    *End      `json:"ended,omitempty"`
}

// End says how a program ended: by itself with Code, by Signal with Code -1, or
// in a way that is not known, which Error describes.
type End struct {
	Code   int    `json:"code"`
	Signal int    `json:"signal,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Errors of a keeper, as its clients see them.
var (
	ErrNotFound = errors.New("no such shell")
	ErrTooMany  = errors.New("too many shells")
	ErrCommand  = errors.New("the shell could not be started")
)

var codes = map[string]error{"not_found": ErrNotFound, "too_many": ErrTooMany, "command": ErrCommand}

func failure(err error) Answer {
	for code, e := range codes {
		if errors.Is(err, e) {
			return Answer{Error: err.Error(), Code: code}
		}
	}
	return Answer{Error: err.Error()}
}

// remote is an error that the keeper reported.
type remote struct {
	text string
	kind error
}

func (e *remote) Error() string { return e.text }
func (e *remote) Unwrap() error { return e.kind }

func (a Answer) err() error {
	if a.Error == "" {
		return nil
	}
	return &remote{a.Error, codes[a.Code]}
}

func writeFrame(w io.Writer, kind byte, payload []byte) error {
	if len(payload) > maxFrame {
		return fmt.Errorf("a frame of %d bytes; %d are allowed", len(payload), maxFrame)
	}
	b := make([]byte, headerSize, headerSize+len(payload))
	b[0] = kind
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	_, err := w.Write(append(b, payload...))
	return err
}

func writeJSON(w io.Writer, kind byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFrame(w, kind, b)
}

// readFrame reads one frame into buf, which grows as needed; the payload is valid
// until buf is used again.
func readFrame(r io.Reader, buf *[]byte) (kind byte, payload []byte, err error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes; %d are allowed", n, maxFrame)
	}
	if cap(*buf) < int(n) {
		*buf = make([]byte, n)
	}
	p := (*buf)[:n]
	if _, err := io.ReadFull(r, p); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return h[0], p, nil
}

func readJSON(r io.Reader, want byte, v any) error {
	var buf []byte
	kind, p, err := readFrame(r, &buf)
	if err != nil {
		return err
	}
	if kind != want {
		return fmt.Errorf("frame %q where %q is expected", kind, want)
	}
	return json.Unmarshal(p, v)
}

func sizePayload(rows, cols uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, rows), cols)
}

func parseSize(p []byte) (rows, cols uint16, err error) {
	if len(p) != 4 {
		return 0, 0, fmt.Errorf("a size of %d bytes", len(p))
	}
	return binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), nil
}
