package shells

import "bytes"

// filter makes output fit for a terminal that must not answer: one that is shown
// the past, or that is not the one in use. It leaves out questions, strings but
// for titles and links, and bells.
type filter struct {
	scan scanner
	out  []byte
}

// pass returns what is left of p; the slice is valid until the next call. With
// raw nothing is left out but what was begun before.
func (f *filter) pass(p []byte, raw bool) []byte {
	f.out = f.out[:0]
	f.scan.scan(p, func(t token, b []byte) {
		if raw || harmless(t, b) {
			if t == tokenText && !raw {
				for _, c := range b {
					if c != 0x07 && c != 0x05 {
						f.out = append(f.out, c)
					}
				}
				return
			}
			f.out = append(f.out, b...)
		}
	})
	return f.out
}

// harmless tells whether a terminal only draws what it is told here.
func harmless(t token, b []byte) bool {
	switch t {
	case tokenText:
		return true
	case tokenEscape:
		return b[len(b)-1] != 'Z' && !(b[0] == 0xc2 && b[len(b)-1] == 0x9a)
	case tokenString:
		body, ok := bytes.CutPrefix(b, []byte("\x1b]"))
		if !ok {
			return false
		}
		for _, allowed := range []string{"0;", "1;", "2;", "8;"} {
			if bytes.HasPrefix(body, []byte(allowed)) {
				return true
			}
		}
		return false
	case tokenCSI:
		prefix, between, final := parts(b)
		switch final {
		case 'c', 'n', 't', 'x':
			return false
		case 'q':
			return prefix != '>'
		case 'p', 'w', 'y', '|':
			return between == 0
		case 'u', 'S':
			return prefix != '?'
		}
		return true
	}
	return false
}

// parts are the private prefix, the last intermediate and the final of a CSI
// sequence; 0 where there is none.
func parts(b []byte) (prefix, between, final byte) {
	body := body(b)
	if len(body) == 0 {
		return 0, 0, 0
	}
	final = body[len(body)-1]
	if body[0] >= '<' && body[0] <= '?' {
		prefix = body[0]
	}
	if len(body) > 1 {
		if c := body[len(body)-2]; c >= 0x20 && c < 0x30 {
			between = c
		}
	}
	return prefix, between, final
}

// body is a CSI sequence without its introducer, which is two bytes either way.
func body(b []byte) []byte { return b[2:] }
