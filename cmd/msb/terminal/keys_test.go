package terminal

import "testing"

func TestParseDetachKeys(t *testing.T) {
	for _, tc := range []struct{ in, want, show string }{
		{"ctrl-]", "\x1d", "Ctrl-]"},
		{"ctrl-p,ctrl-q", "\x10\x11", "Ctrl-P Ctrl-Q"},
		{"CTRL-A", "\x01", "Ctrl-A"},
		{"ctrl-@", "\x00", "Ctrl-@"},
		{"ctrl-_", "\x1f", "Ctrl-_"},
		{"a,ctrl-[", "a\x1b", "a Ctrl-["},
		{"none", "", ""},
	} {
		got, err := ParseDetachKeys(tc.in)
		if err != nil || string(got) != tc.want || got.String() != tc.show {
			t.Errorf("%s: got %q (%s), %v; want %q (%s)", tc.in, got, got, err, tc.want, tc.show)
		}
	}
	for _, bad := range []string{"ctrl-", "ctrl-1", "ctrl-ab", "meta-x", "a,,b", "ctrl-p,"} {
		if got, err := ParseDetachKeys(bad); err == nil {
			t.Errorf("%q: accepted as %q", bad, got)
		}
	}
}

func TestScanner(t *testing.T) {
	for _, tc := range []struct {
		name, keys string
		in         []string
		pass       string
		detach     bool
	}{
		{"nothing to look for", "", []string{"a\x1db"}, "a\x1db", false},
		{"one key", "\x1d", []string{"ls\r\x1d", "rest"}, "ls\r", true},
		{"sequence over two reads", "\x10\x11", []string{"a\x10", "\x11"}, "a", true},
		{"sequence that was none", "\x10\x11", []string{"\x10", "x"}, "\x10x", false},
		{"begins again", "\x10\x11", []string{"\x10\x10\x11"}, "\x10", true},
		{"overlap", "aab", []string{"aaab"}, "a", true},
	} {
		s := NewScanner(DetachKeys(tc.keys))
		var pass string
		var detach bool
		for _, in := range tc.in {
			if detach {
				break
			}
			var p []byte
			p, detach = s.Scan([]byte(in))
			pass += string(p)
		}
		if pass != tc.pass || detach != tc.detach {
			t.Errorf("%s: passed %q, detach %v; want %q, %v", tc.name, pass, detach, tc.pass, tc.detach)
		}
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain\n\tüml":     "plain\n\tüml",
		"\x1b[31mred\x07":  "�[31mred�",
		"a\u202eb\u009bc":  "a�b�c",
		"not utf-8 \xff\r": "not utf-8 ��",
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}
