package shells

import "net"

const (
	// clearScreen is where the past begins: at the top of an empty screen. What
	// the front end showed before goes into its own scrollback.
	clearScreen = "\x1b[!p\x1b[H\x1b[2J"
	// leaveScreen is for one that has seen a part of it already.
	leaveScreen = "\x1b[?1049l"
)

// show writes the shell to a front end: what is kept, then what comes, then how
// it ended. It returns when there is no more to write, or nobody to read it, and
// tells whether the end was written.
func (k *kept) show(e *end, c net.Conn) (seen bool) {
	var f filter
	var out []byte
	buf := make([]byte, maxFrame/2)
	var past int64 // where the past ends
	for {
		k.mu.Lock()
		for e.pos == k.past.end && k.over == nil && !k.closing && !e.gone && !e.sized {
			k.moved.Wait()
		}
		if e.gone {
			k.mu.Unlock()
			return false
		}
		if e.sized {
			e.sized = false
			rows, cols := k.rows, k.cols
			k.mu.Unlock()
			if err := writeFrame(c, kindSize, sizePayload(rows, cols)); err != nil {
				return false
			}
			continue
		}
		if e.pos < k.past.start() { // it has just come, or was too slow
			modes := k.past.modes.clone()
			begin := clearScreen + modes.Enter()
			if e.pos >= 0 {
				begin = leaveScreen + begin
			} else if k.past.size == 0 {
				begin = ""
			}
			e.pos, past = k.past.start(), k.past.end
			f = filter{scan: modes.scan}
			k.mu.Unlock()
			if err := writeFrame(c, kindOutput, []byte(begin)); err != nil {
				return false
			}
			continue
		}
		n := k.past.read(e.pos, buf)
		if e.pos < past {
			n = min(n, int(past-e.pos))
		}
		raw := e.pos >= past && e == k.active
		e.pos += int64(n)
		over, closing := k.over, k.closing
		k.mu.Unlock()
		out = append(out[:0], f.pass(buf[:n], raw)...)
		if len(out) > 0 {
			if err := writeFrame(c, kindOutput, out); err != nil {
				return false
			}
		}
		k.mu.Lock()
		e.stuck = false
		k.moved.Broadcast()
		k.mu.Unlock()
		if n > 0 {
			continue
		}
		if over == nil && closing {
			over = &End{Code: -1, Error: "the sandbox stops"}
		}
		if over != nil {
			return writeJSON(c, kindEnd, *over) == nil
		}
	}
}
