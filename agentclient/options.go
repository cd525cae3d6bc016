package agentclient

import (
	"time"

	"msb/protocol/frame"
)

// Option changes a default of Dial and New.
type Option func(*config)

type config struct {
	handshake time.Duration
	spoolDir  string
	spoolMax  int64 // bytes per output stream
	memory    int   // bytes of an output kept in memory before it is spooled

	readBulk   int // least size of a read that offers raw bulk
	writeBulk  int // least size of a write that offers raw bulk
	readRecord uint32
	record     int // bytes of one record that we send
	window     uint64
	linger     time.Duration // of a TCP stream that the other side does not end
}

func defaults() config {
	return config{
		handshake:  10 * time.Second,
		spoolMax:   4 << 30,
		memory:     1 << 20,
		readBulk:   32 << 10,
		writeBulk:  192 << 10,
		readRecord: 512 << 10,
		record:     256 << 10,
		window:     frame.DefaultBulkWindow,
		linger:     10 * time.Second,
	}
}

// WithHandshakeTimeout bounds connecting and the handshake; 10 s by default.
func WithHandshakeTimeout(d time.Duration) Option { return func(c *config) { c.handshake = d } }

// WithSpool sets where output that nobody reads is kept, and how many bytes
// of it for each output of a command (4 GiB by default). The files are
// unlinked: they are never seen and end with the process. An empty dir means
// $TMPDIR or /var/tmp.
func WithSpool(dir string, limit int64) Option {
	return func(c *config) { c.spoolDir, c.spoolMax = dir, limit }
}
