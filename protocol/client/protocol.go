// Package client is the engine that the clients of the framed protocols
// share: it owns one connection, gives out correlation ids, routes frames to
// the streams that own them and writes frames in turn. What a protocol adds
// (opening exchange, flags and generation of a message, the envelope) it plugs
// in as a Protocol.
package client

import (
	"context"
	"io"
	"math"

	"msb/protocol/frame"
)

// Protocol is what a wire protocol plugs into the engine. All methods but
// Setup must be safe for concurrent use.
type Protocol interface {
	// Setup runs the opening exchange on a new connection. When ctx ends the
	// connection is closed, so reads and writes need no deadline of their own.
	Setup(ctx context.Context, o *Opening) (IDSpace, error)
	// Prepare admits a message for sending. An error refuses it: nothing is
	// sent and no other stream notices.
	Prepare(name string) (Outbound, error)
	// Encode turns a typed payload into bytes.
	Encode(payload any) ([]byte, error)
	// AppendFrame appends the whole frame of a message to dst.
	AppendFrame(dst []byte, id uint32, out Outbound, payload []byte) ([]byte, error)
	// Decode opens the body of a received frame. The message may share body.
	Decode(h Header, body []byte) (Message, error)
}

// Outbound is what the protocol adds to a message that it admits.
type Outbound struct {
	Name    string
	Flags   uint8
	Version uint8
}

// Message is one received message.
type Message struct {
	ID      uint32
	Flags   uint8
	Version uint8 // generation of the sender
	Name    string
	Payload []byte
}

// Terminal tells whether this is the last message of its stream.
func (m Message) Terminal() bool { return terminal(m.Flags) }

// Header is the decoded header of a received frame.
type Header struct {
	ID    uint32
	Flags uint8
	Len   int // bytes of the body
}

// Terminal tells whether the frame is the last one of its stream.
func (h Header) Terminal() bool { return terminal(h.Flags) }

func terminal(flags uint8) bool {
	return flags&frame.FlagTerminal != 0 && flags&frame.FlagBulk == 0
}

// IDSpace is the range of correlation ids a connection may use, both ends
// included. Reusable ids come back after their terminal reply; others are used
// once and the connection has to be renewed when they run out.
type IDSpace struct {
	First, Last uint32
	Reusable    bool
}

// AllIDs is every id but zero.
func AllIDs(reusable bool) IDSpace {
	return IDSpace{First: 1, Last: math.MaxUint32, Reusable: reusable}
}

// Opening is the connection while Setup owns it.
type Opening struct {
	r *source
	w io.Writer
}

// Read reads from the peer.
func (o *Opening) Read(p []byte) (int, error) { return o.r.Read(p) }

// Write writes to the peer.
func (o *Opening) Write(p []byte) (int, error) { return o.w.Write(p) }

// ReadFrame reads one frame whose length word is at most limit and returns it
// whole, length word included. The slice belongs to the caller.
func (o *Opening) ReadFrame(limit int) ([]byte, error) {
	var prefix [frame.PrefixSize]byte
	if _, err := io.ReadFull(o.r, prefix[:]); err != nil {
		return nil, err
	}
	return o.ReadFrameAfter(prefix, limit)
}

// ReadFrameAfter is ReadFrame for a caller that has read the length word.
func (o *Opening) ReadFrameAfter(prefix [frame.PrefixSize]byte, limit int) ([]byte, error) {
	length := uint32(prefix[0])<<24 | uint32(prefix[1])<<16 | uint32(prefix[2])<<8 | uint32(prefix[3])
	if err := checkLength(length, limit); err != nil {
		return nil, err
	}
	raw := make([]byte, frame.PrefixSize+int(length))
	copy(raw, prefix[:])
	if _, err := io.ReadFull(o.r, raw[frame.PrefixSize:]); err != nil {
		return nil, unexpectedEOF(err)
	}
	return raw, nil
}
