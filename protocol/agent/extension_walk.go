package agent

import (
	"math"

	"msb/protocol/record"
)

// A fielder is an operation of msb.fs or its result: an array of fields in a
// fixed order. fields names each of them to w, which encodes, decodes or lists
// them, so that the three cannot differ.
type fielder interface{ fields(w *walker) }

// walker goes over the fields of a fielder.
type walker struct {
	enc     []byte    // encoding: the array so far
	lend    *Gathered // takes large data instead of enc; may be nil
	n       int       // fields so far
	dec     *record.Cursor
	left    uint64 // fields of the array that are still to come
	listing *[]string
	err     error
}

// appendFields appends x as an array. Large data goes to lend, if there is one.
func appendFields(dst []byte, x fielder, lend *Gathered) []byte {
	w := walker{enc: append(dst, 0), lend: lend}
	x.fields(&w)
	w.enc[len(dst)] = record.Array<<5 | byte(w.n) // fewer than 24 fields
	return w.enc
}

// decodeFields reads x from an array of exactly its fields.
func decodeFields(c *record.Cursor, x fielder) error {
	m, n, err := c.Head()
	if err != nil {
		return err
	}
	if m != record.Array || n == record.Indefinite {
		return record.Malformed("not an array of fields")
	}
	w := walker{dec: c, left: n}
	x.fields(&w)
	if w.err == nil && w.left > 0 {
		w.err = record.Malformed("%d fields too many", w.left)
	}
	return w.err
}

// listFields returns "name type" of every field.
func listFields(x fielder) []string {
	names := []string{}
	w := walker{listing: &names}
	x.fields(&w)
	return names
}

// next begins a field; false means that there is nothing to decode.
func (w *walker) next(name, kind string) (decode bool) {
	w.n++
	switch {
	case w.listing != nil:
		*w.listing = append(*w.listing, name+" "+kind)
		return false
	case w.dec == nil || w.err != nil:
		return false
	case w.left == 0:
		w.err = record.Malformed("field %q is missing", name)
		return false
	}
	w.left--
	return true
}

func (w *walker) encoding() bool { return w.dec == nil && w.listing == nil }

func (w *walker) u64(name string, v *uint64) { w.unsigned(name, "u64", v, math.MaxUint64) }

func (w *walker) unsigned(name, kind string, v *uint64, limit uint64) {
	if w.next(name, kind) {
		m, n, err := w.dec.Head()
		switch {
		case err != nil:
			w.err = err
		case m != record.Uint || n > limit:
			w.err = record.Malformed("field %q is not a %s", name, kind)
		default:
			*v = n
		}
	} else if w.encoding() {
		w.enc = record.AppendHead(w.enc, record.Uint, *v)
	}
}

func (w *walker) u32(name string, v *uint32) {
	x := uint64(*v)
	w.unsigned(name, "u32", &x, math.MaxUint32)
	*v = uint32(x)
}

func (w *walker) i64(name string, v *int64) {
	if w.next(name, "i64") {
		m, n, err := w.dec.Head()
		switch {
		case err != nil:
			w.err = err
		case m == record.Uint && n <= math.MaxInt64:
			*v = int64(n)
		case m == record.Negint && n <= math.MaxInt64:
			*v = -1 - int64(n)
		default:
			w.err = record.Malformed("field %q is not an i64", name)
		}
	} else if w.encoding() {
		if *v < 0 {
			w.enc = record.AppendHead(w.enc, record.Negint, uint64(-1-*v))
		} else {
			w.enc = record.AppendHead(w.enc, record.Uint, uint64(*v))
		}
	}
}

func (w *walker) bool(name string, v *bool) {
	if w.next(name, "bool") {
		m, n, err := w.dec.Head()
		switch {
		case err != nil:
			w.err = err
		case m != record.Simple || n != 20 && n != 21:
			w.err = record.Malformed("field %q is not a bool", name)
		default:
			*v = n == 21
		}
	} else if w.encoding() {
		w.enc = append(w.enc, 0xf4)
		if *v {
			w.enc[len(w.enc)-1] = 0xf5
		}
	}
}

// optional is a u64 or null.
func (w *walker) optional(name string, v **uint64) {
	if w.next(name, "u64|null") {
		if w.null() {
			*v = nil
			return
		}
		m, n, err := w.dec.Head()
		if err == nil && m != record.Uint {
			err = record.Malformed("field %q is not a u64", name)
		}
		*v, w.err = &n, err
	} else if w.encoding() {
		if *v == nil {
			w.enc = append(w.enc, 0xf6)
		} else {
			w.enc = record.AppendHead(w.enc, record.Uint, **v)
		}
	}
}

func (w *walker) null() bool {
	if w.dec.Pos < len(w.dec.B) && w.dec.B[w.dec.Pos] == 0xf6 {
		w.dec.Pos++
		return true
	}
	return false
}

// bytes is a byte string. A decoded one is a part of what it came from.
func (w *walker) bytes(name string, v *[]byte) {
	if w.next(name, "bytes") {
		*v, w.err = w.dec.String(record.Bytes)
	} else if w.encoding() {
		w.enc = record.AppendHead(w.enc, record.Bytes, uint64(len(*v)))
		if !w.lend.take(len(w.enc), *v) {
			w.enc = append(w.enc, *v...)
		}
	}
}

// nested is a field that is an array of fields itself.
func (w *walker) nested(name, kind string, x fielder) {
	if w.next(name, kind) {
		w.err = decodeFields(w.dec, x)
	} else if w.encoding() {
		w.enc = appendFields(w.enc, x, nil)
	}
}

// list is an array of arrays of fields.
func list[T any, P interface {
	*T
	fielder
}](w *walker, name, kind string, v *[]T) {
	if w.next(name, "["+kind+"]") {
		m, n, err := w.dec.Head()
		if err != nil || m != record.Array || n == record.Indefinite || n > uint64(len(w.dec.B)) {
			w.err = record.Malformed("field %q is not a list", name)
			return
		}
		*v = make([]T, 0, min(n, 4096))
		for range n {
			var x T
			if w.err = decodeFields(w.dec, P(&x)); w.err != nil {
				return
			}
			*v = append(*v, x)
		}
	} else if w.encoding() {
		w.enc = record.AppendHead(w.enc, record.Array, uint64(len(*v)))
		for i := range *v {
			w.enc = appendFields(w.enc, P(&(*v)[i]), nil)
		}
	}
}

// numbers is an array of u32.
func (w *walker) numbers(name string, v *[]uint32) {
	if w.next(name, "[u32]") {
		m, n, err := w.dec.Head()
		if err != nil || m != record.Array || n == record.Indefinite || n > uint64(len(w.dec.B)) {
			w.err = record.Malformed("field %q is not a list", name)
			return
		}
		*v = make([]uint32, 0, min(n, 1024))
		for range n {
			m, x, err := w.dec.Head()
			if err != nil || m != record.Uint || x > math.MaxUint32 {
				w.err = record.Malformed("field %q holds something else than u32", name)
				return
			}
			*v = append(*v, uint32(x))
		}
	} else if w.encoding() {
		w.enc = record.AppendHead(w.enc, record.Array, uint64(len(*v)))
		for _, x := range *v {
			w.enc = record.AppendHead(w.enc, record.Uint, uint64(x))
		}
	}
}
