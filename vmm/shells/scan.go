package shells

// token is what a piece of terminal output is.
type token int

const (
	tokenText    token = iota // characters and C0 controls, as many as came at once
	tokenEscape               // ESC, intermediates, final
	tokenCSI                  // with its introducer and final
	tokenString               // OSC, DCS, APC, PM or SOS with its end
	tokenDropped              // a sequence too long to be one: nothing of it is kept
)

// Bounds of a sequence, in bytes. Longer ones are dropped, as terminals do.
const (
	maxCSI    = 256
	maxString = 4096
)

type scanState int

const (
	ground scanState = iota
	sawEscape
	inCSI
	inString
	inStringEscape // ESC inside a string: its end, if a backslash follows
	sawC2          // the first byte of a C1 control written as UTF-8
)

// scanner splits terminal output, which comes in any pieces, into tokens. It is a
// value: a copy goes on from the same place.
type scanner struct {
	state scanState
	held  string // of an unfinished sequence
	over  bool   // the sequence was too long; it is skipped up to its end
	c2    bool   // an unfinished string ended in 0xc2
}

// scan hands the tokens that end in p to emit. Slices are valid during the call.
func (s *scanner) scan(p []byte, emit func(t token, b []byte)) {
	text := 0 // where text that was not handed on begins
	held := []byte(s.held)
	flush := func(end int) {
		if end > text {
			emit(tokenText, p[text:end])
		}
	}
	finish := func(t token) {
		if s.over {
			t = tokenDropped
		}
		emit(t, held)
		held, s.over, s.state = held[:0], false, ground
	}
	for i := 0; i < len(p); i++ {
		b := p[i]
		switch s.state {
		case ground:
			if b != 0x1b && b != 0xc2 {
				continue
			}
			flush(i)
			held = append(held[:0], b)
			s.state = sawEscape
			if b == 0xc2 {
				s.state = sawC2
			}
		case sawC2:
			held = append(held, b)
			switch {
			case b == 0x9b:
				s.state = inCSI
			case b == 0x90 || b == 0x98 || b == 0x9d || b == 0x9e || b == 0x9f:
				s.state = inString
			case b >= 0x80 && b < 0xa0:
				finish(tokenEscape)
			case b == 0x1b: // 0xc2 was no character
				emit(tokenText, held[:1])
				held, s.state = append(held[:0], b), sawEscape
			default:
				emit(tokenText, held)
				held, s.state = held[:0], ground
			}
		case sawEscape:
			if b < 0x20 && b != 0x1b {
				if b == 0x18 || b == 0x1a {
					held, s.state = held[:0], ground
				} else {
					emit(tokenText, p[i:i+1])
				}
				break
			}
			held = append(held, b)
			switch {
			case b == '[' && len(held) == 2:
				s.state = inCSI
			case (b == ']' || b == 'P' || b == '_' || b == '^' || b == 'X') && len(held) == 2:
				s.state = inString
			case b == 0x1b:
				held = append(held[:0], b)
			case b >= 0x20 && b < 0x30 && len(held) < 8: // intermediates
			default:
				finish(tokenEscape)
			}
		case inCSI:
			switch {
			case b == 0x1b: // it never ended
				held, s.over, s.state = append(held[:0], b), false, sawEscape
			case b == 0x18 || b == 0x1a:
				held, s.over, s.state = held[:0], false, ground
			case b < 0x20: // a control inside a sequence happens before it
				emit(tokenText, p[i:i+1])
			default:
				held = s.hold(held, b, maxCSI)
				if b >= 0x40 && b < 0x7f {
					finish(tokenCSI)
				} else if b >= 0x7f { // no terminal agrees with another about these
					s.over = true
					finish(tokenCSI)
				}
			}
		case inString:
			switch {
			case b == 0x1b:
				held = s.hold(held, b, maxString)
				s.state = inStringEscape
			case b == 0x07, s.c2 && b == 0x9c:
				held = s.hold(held, b, maxString)
				finish(tokenString)
			case b == 0x18 || b == 0x1a:
				held, s.over, s.state = held[:0], false, ground
			default:
				held = s.hold(held, b, maxString)
			}
			s.c2 = b == 0xc2
		case inStringEscape:
			held = s.hold(held, b, maxString)
			if b == '\\' {
				finish(tokenString)
			} else { // the string ends without an end, and what follows is a sequence of its own
				held, s.over = append(held[:0], 0x1b, b), false
				switch b {
				case '[':
					s.state = inCSI
				case ']', 'P', '_', '^', 'X':
					s.state = inString
				case 0x1b:
					held, s.state = held[:1], sawEscape
				default:
					s.state = sawEscape
					switch {
					case b == 0x18 || b == 0x1a:
						held, s.state = held[:0], ground
					case b < 0x20:
						held = held[:1]
						emit(tokenText, p[i:i+1])
					case b >= 0x30:
						finish(tokenEscape)
					}
				}
			}
		}
		text = i + 1
	}
	if s.state == ground {
		flush(len(p))
	}
	s.held = string(held)
}

// hold keeps a byte of a sequence, up to most of them.
func (s *scanner) hold(held []byte, b byte, most int) []byte {
	if len(held) >= most {
		s.over = true
		return held
	}
	return append(held, b)
}
