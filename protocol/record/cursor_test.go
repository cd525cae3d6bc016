package record

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestHeads(t *testing.T) {
	for _, tc := range []struct {
		major byte
		n     uint64
		hex   string
	}{
		{Uint, 0, "00"}, {Uint, 23, "17"}, {Uint, 24, "1818"}, {Uint, 255, "18ff"}, {Uint, 256, "190100"},
		{Negint, 0xffff, "39ffff"}, {Bytes, 0x10000, "5a00010000"}, {Text, math.MaxUint32, "7affffffff"},
		{Map, 1 << 32, "bb0000000100000000"}, {Uint, math.MaxUint64, "1bffffffffffffffff"},
	} {
		want := unhex(t, tc.hex)
		if got := AppendHead(nil, tc.major, tc.n); !bytes.Equal(got, want) {
			t.Errorf("%d of major type %d is written as %x, want %x", tc.n, tc.major, got, want)
		}
		if got := HeadLen(tc.n); got != len(want) {
			t.Errorf("the head of %d has %d bytes, want %d", tc.n, got, len(want))
		}
		c := Cursor{B: want}
		if major, n, err := c.Head(); err != nil || major != tc.major || n != tc.n || c.Pos != len(want) {
			t.Errorf("%x is read as %d of major type %d, %v", want, n, major, err)
		}
	}
}

func TestMalformedItems(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("81", n) + "00" }
	for name, in := range map[string]string{
		"nothing":                   "",
		"half a head":               "1901",
		"reserved head":             "1c",
		"lone break":                "ff",
		"indefinite integer":        "1f",
		"string beyond the end":     "43 0102",
		"string of all there is":    "5b ffffffffffffffff 01",
		"longest bytes in chunks":   "5b ffffffffffffffff 41 01 ff",
		"longest text in chunks":    "7b ffffffffffffffff 61 61 ff",
		"longest array with an end": "9b ffffffffffffffff 01 ff",
		"longest map with an end":   "bb ffffffffffffffff 61 61 01 ff",
		"text chunk in bytes":       "5f 6161 ff",
		"indefinite chunk":          "5f 5f 41 01 ff ff",
		"indefinite string cut off": "5f 41 01",
		"array that ends early":     "82 01",
		"map without a value":       "a1 6161",
		"tag of nothing":            "c0",
		"nested too deep":           deep(MaxDepth + 1),
	} {
		t.Run(name, func(t *testing.T) {
			c := Cursor{B: unhex(t, in)}
			if err := c.Skip(0); !errors.Is(err, ErrMalformed) {
				t.Errorf("error %v", err)
			}
		})
	}
	c := Cursor{B: unhex(t, deep(MaxDepth))}
	if err := c.Skip(0); err != nil {
		t.Errorf("as deep as is allowed: %v", err)
	}
}

// Skip ends exactly where the next item begins.
func TestSkip(t *testing.T) {
	for _, item := range []string{
		"00", "1903e8", "20", "40", "43010203", "5f 4101 420203 ff", "60", "7f 6161 ff", "80", "83 01 02 03", "9f 01 82 02 03 ff",
		"a0", "a1 6161 01", "bf 6161 80 01 02 ff", "c2 4101", "f4", "f6", "f93c00", "fb3ff0000000000000",
	} {
		b := unhex(t, item)
		c := Cursor{B: append(b, 0x17)}
		if err := c.Skip(0); err != nil || c.Pos != len(b) {
			t.Errorf("%s: stands at %d of %d, %v", item, c.Pos, len(b), err)
		}
	}
}

func TestByteString(t *testing.T) {
	for _, tc := range []struct {
		name, hex, want string
		ok              bool
	}{
		{"byte string", "43 010203", "010203", true},
		{"empty", "40", "", true},
		{"in chunks", "5f 4101 420203 ff", "010203", true},
		{"tagged 64", "d840 42 0102", "0102", true},
		{"array of bytes", "83 01 18ff 00", "01ff00", true},
		{"indefinite array", "9f 01 02 ff", "0102", true},
		{"text", "63 616263", "", false},
		{"another tag", "c2 42 0102", "", false},
		{"array of larger numbers", "81 190100", "", false},
		{"array of negative numbers", "81 20", "", false},
		{"array that ends early", "82 01", "", false},
		{"array that claims everything", "9b ffffffffffffffff 01", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Cursor{B: unhex(t, tc.hex)}
			got, err := c.ByteString()
			if (err == nil) != tc.ok || tc.ok && hex.EncodeToString(got) != tc.want {
				t.Errorf("%x, %v", got, err)
			}
			if err != nil && !errors.Is(err, ErrMalformed) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestKey(t *testing.T) {
	for in, want := range map[string]string{"62 6162": "ab", "7f 6161 6162 ff": "ab", "60": ""} {
		c := Cursor{B: unhex(t, in)}
		if key, isText, err := c.Key(); err != nil || !isText || string(key) != want {
			t.Errorf("%s: %q, %v, %v", in, key, isText, err)
		}
	}
	c := Cursor{B: unhex(t, "82 01 02 17")}
	if _, isText, err := c.Key(); err != nil || isText || c.Pos != 3 {
		t.Errorf("a key that is an array: text %v, stands at %d, %v", isText, c.Pos, err)
	}
}
