package files

import "sync"

// bufferSize is how much of a file is read at a time, and so the payload of most records, in bytes. A port keeps busy
// with much less; more would only make control frames wait longer behind a record.
const bufferSize = 1 << 20

type buffer [bufferSize]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

func takeBuffer() *buffer  { return buffers.Get().(*buffer) }
func giveBuffer(b *buffer) { buffers.Put(b) }
