package fusefs

import (
	"fmt"
	"strings"
	"testing"
)

// escape is what the kernel does to paths in mountinfo.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte(" \t\n\\#", s[i]) >= 0 {
			fmt.Fprintf(&b, "\\%03o", s[i])
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// A mount point whose path the kernel escapes is found again, and so can be unmounted.
func TestUnescapeUndoesMountinfo(t *testing.T) {
	for _, path := range []string{
		"/plain", "/a b", "/a\tb", "/a\nb", `/a\b`, "/a#b", `/a\040b`, "/a b/c  d", `/ends\`, "/ends ", `\`, "", "/sp ace\nx\\040",
	} {
		if got := unescape(escape(path)); got != path {
			t.Errorf("unescape(%q) = %q, want %q", escape(path), got, path)
		}
	}
	for c := range 256 {
		if got := unescape(fmt.Sprintf("x\\%03oy", c)); got != "x"+string([]byte{byte(c)})+"y" {
			t.Errorf("byte %03o became %q", c, got)
		}
	}
}
