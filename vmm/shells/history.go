package shells

// history is the last part of what a shell printed, by offsets in all of it.
type history struct {
	buf   []byte // a ring
	end   int64  // offset after the newest byte
	size  int    // bytes that are kept
	modes Modes  // at the oldest byte
}

// maxKept is how much a shell keeps, in bytes.
const maxKept = 512 << 10

func newHistory() *history { return &history{} }

// start is the offset of the oldest byte.
func (h *history) start() int64 { return h.end - int64(h.size) }

// write adds p, which is no longer than maxKept.
func (h *history) write(p []byte) {
	for len(h.buf) < maxKept && h.size+len(p) > len(h.buf) { // it grows with its use
		grown := make([]byte, min(max(2*len(h.buf), 4096), maxKept))
		n := h.read(h.start(), grown)
		h.buf = grown
		h.size = n
		if n > 0 { // offsets and places in the ring go together
			h.rotate(n)
		}
	}
	if over := h.size + len(p) - len(h.buf); over > 0 {
		var piece [4096]byte
		for over > 0 {
			n := h.read(h.start(), piece[:min(over, len(piece))])
			h.modes.Write(piece[:n])
			h.size -= n
			over -= n
		}
	}
	for len(p) > 0 {
		at := int(h.end % int64(len(h.buf)))
		n := copy(h.buf[at:], p)
		p = p[n:]
		h.end += int64(n)
		h.size += n
	}
}

// rotate puts the n bytes at the beginning of a new ring where their offsets
// say.
func (h *history) rotate(n int) {
	old := append([]byte(nil), h.buf[:n]...)
	at := int((h.end - int64(n)) % int64(len(h.buf)))
	k := copy(h.buf[at:], old)
	copy(h.buf, old[k:])
}

// read copies what is kept from offset on into p.
func (h *history) read(offset int64, p []byte) int {
	n := 0
	for n < len(p) && offset < h.end {
		at := int(offset % int64(len(h.buf)))
		k := copy(p[n:], h.buf[at:min(len(h.buf), at+int(h.end-offset))])
		n += k
		offset += int64(k)
	}
	return n
}
