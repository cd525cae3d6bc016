// Package turnrpc is the wire format of the turn RPC, versions 1 to 4: JSON
// frames between a host and the turn agent in a guest, the methods of both
// sides with their minimum version, and every payload. It holds no policy.
package turnrpc

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Version is the newest version this package speaks, and what a frame that
// says nothing is written with.
const Version = 4

// MaxFrame is the largest body of a frame in bytes, in both directions.
const MaxFrame = 1 << 20

var (
	// ErrFrameSize reports a frame of length 0 or above MaxFrame. Met while
	// reading it is fatal for the stream; met while writing nothing is sent.
	ErrFrameSize = errors.New("turn RPC frame has a bad size")
	// ErrFrame reports a body that is not a frame. Fatal as well.
	ErrFrame = errors.New("malformed turn RPC frame")
)

// Frame is one message: a call or notification (Method), or a response
// (Result or Error).
type Frame struct {
	V      int             `json:"v"`
	ID     string          `json:"id"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"`
}

// Error is a failed call.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error returns code and message.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Error codes on the wire.
const (
	CodeGuest    = "guest"    // a guest's method failed
	CodeAgent    = "agent"    // the turn failed
	CodeCanceled = "canceled" // the turn, stream or call was cancelled, or the turn's deadline passed
	CodeHost     = "host"     // a broker failed, or the method or version is not served
	CodeBusy     = "busy"     // no slot for another guest call
)

// IsResponse tells a response from a call or notification.
func (f *Frame) IsResponse() bool { return f.Method == "" }

// Read reads one frame. A stream that ends between frames gives io.EOF.
func Read(r io.Reader) (*Frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > MaxFrame {
		return nil, fmt.Errorf("%w: %d bytes, allowed are 1 to %d", ErrFrameSize, n, MaxFrame)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return Parse(body)
}

// Parse decodes the body of a frame. Unknown fields are ignored.
func Parse(body []byte) (*Frame, error) {
	f := new(Frame)
	if err := json.Unmarshal(body, f); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrFrame, err)
	}
	return f, nil
}

// Append appends the encoded frame, length word included. A frame without a
// version gets Version.
func Append(dst []byte, f *Frame) ([]byte, error) {
	if f.V == 0 {
		copied := *f
		copied.V = Version
		f = &copied
	}
	body, err := json.Marshal(f)
	if err != nil {
		return dst, fmt.Errorf("encode turn RPC frame: %w", err)
	}
	if len(body) > MaxFrame {
		return dst, fmt.Errorf("%w: %d bytes to send, allowed are %d", ErrFrameSize, len(body), MaxFrame)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)))
	return append(dst, body...), nil
}

// Call returns a request or notification.
func Call(id, method string, params any) (*Frame, error) {
	p, err := json.Marshal(params)
	if err != nil {
		return nil, fmt.Errorf("encode params of %s: %w", method, err)
	}
	return &Frame{V: Version, ID: id, Method: method, Params: p}, nil
}

// Respond returns a successful response.
func Respond(id string, result any) (*Frame, error) {
	p, err := json.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return &Frame{V: Version, ID: id, Result: p}, nil
}

// Fail returns a failed response.
func Fail(id, code, message string) *Frame {
	return &Frame{V: Version, ID: id, Error: &Error{Code: code, Message: message}}
}

// ErrEmptyParams is the error of a method that needs params and got none.
var ErrEmptyParams = errors.New("empty params")

// DecodeParams decodes the params of a call into v. Missing params are
// ErrEmptyParams.
func (f *Frame) DecodeParams(v any) error {
	if len(f.Params) == 0 {
		return ErrEmptyParams
	}
	if err := json.Unmarshal(f.Params, v); err != nil {
		return fmt.Errorf("params of %s: %w", f.Method, err)
	}
	return nil
}
