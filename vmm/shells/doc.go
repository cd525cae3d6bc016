// Package shells keeps terminals of a sandbox alive while nobody looks at them.
//
// The runtime of a sandbox holds a Keeper. It starts programs on terminals as a
// client of its own relay, reads what they print whether anybody is there or not,
// and keeps the last part of it. Front ends come over a socket that is only for
// the sandbox's owner (shells.sock, 0600): they open a shell, or attach to one
// that lives, see what was kept and then what comes, and leave when they like.
// Several may be at one shell; its terminal has the size of the one that typed or
// was resized last.
//
// A connection is one request and, for a shell, the frames that follow:
//
//	frame    kind u8, length u32 big endian (at most 64 KiB), payload
//	  →  q   Request as JSON, once, first
//	  ←  a   Answer as JSON, once
//	  →  i   what was typed          ←  o   what is to be drawn
//	  →  s   rows u16, cols u16      ←  s   the terminal's size has become
//	  ←  l   []Info as JSON, to a watcher, whenever something changed
//	  ←  e   End as JSON: the program has ended; the connection ends
//
// What programs print comes from a hostile place. It is not understood here but
// for one thing: where a control sequence begins and ends, so that what is kept
// can be shown again without asking the terminal questions (whose answers would
// be typed into the shell), writing its clipboard or ringing its bell again, and
// so that a front end that leaves knows which modes to take back.
package shells
