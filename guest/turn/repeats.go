package turn

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
)

// A model can get stuck in one call. After sameInRow calls with the same arguments and nothing in between it is told so
// instead of an answer; if it goes on to maxInRow the turn ends. So it does when a call has brought the same result
// maxSame times in a turn, with whatever in between.
const (
	sameInRow = 3
	maxInRow  = 6
	maxSame   = 12
)

// repeats watches the calls of a turn.
type repeats struct {
	last  [32]byte
	row   int
	known map[[32]byte]int // call and result → times
}

// before is asked before each call: a warning takes the place of the call.
func (r *repeats) before(c toolCall) (warning string, stop error) {
	key := callKey(c)
	if key != r.last {
		r.last, r.row = key, 0
	}
	r.row++
	switch {
	case r.row > maxInRow:
		return "", fmt.Errorf("stopped: the model made the same call of %s %d times in a row", c.name, r.row)
	case r.row > sameInRow:
		return fmt.Sprintf("this is the same call for the %dth time in a row, and it was not run again: its result is above. Do something else, or answer.", r.row), nil
	}
	return "", nil
}

// after is told each result.
func (r *repeats) after(c toolCall, result string) error {
	key := callKey(c)
	sum := sha256.Sum256(append(key[:], result...))
	if r.known == nil {
		r.known = make(map[[32]byte]int)
	}
	if r.known[sum]++; r.known[sum] >= maxSame {
		return fmt.Errorf("stopped: the model made the same call of %s %d times in this turn, with the same result each time", c.name, r.known[sum])
	}
	return nil
}

func callKey(c toolCall) [32]byte {
	var b bytes.Buffer
	if json.Compact(&b, []byte(c.args)) != nil {
		b.WriteString(c.args)
	}
	return sha256.Sum256(append([]byte(c.name+"\x00"), b.Bytes()...))
}
