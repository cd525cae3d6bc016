package foreign

import (
	"strings"
	"testing"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

func TestInspect(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string
		warn           []string
	}{
		{"plain", `go test ./... | grep "a b" \n`, `go test ./... | grep "a b" \n`, nil},
		{"indentation", "for i in 1 2; do\n    echo $i\ndone", "for i in 1 2; do\n    echo $i\ndone", nil},
		{"other languages", `echo "größe 大小 ñ"`, `echo "größe 大小 ñ"`, nil},
		{"padding", "ls" + strings.Repeat(" ", 200) + ";x", `ls\x20{200};x`, []string{"1 run of many spaces"}},
		{"space at the end", "ls ", `ls\x20`, []string{"1 run of many spaces"}},
		{"backslash", "a\\u202e\u202eb", `a\\u202e\u202eb`, []string{"1 invisible or control character"}},
		{"those others forgot", "\u061c\U000e0100\U0001d173\U0001bca0\u3164\u00a0", `\u061c\U000e0100\U0001d173\U0001bca0\u3164\u00a0`, []string{"6 invisible or control characters"}},
		{"look-alike", "cаt", `c\u0430t`, []string{`1 look-alike letter (\u0430 is Cyrillic а and looks like a)`}},
		{"full width", "ｒm", `\uff52m`, []string{`1 look-alike letter (\uff52 is Latin ｒ and looks like r)`}},
		{"slash", "rm a∕b", `rm a\u2215b`, nil},
		{"Hebrew", "rm א", `rm \u05d0`, []string{"1 letter written from right to left"}},
		{"overlay", "a\u0338b", `a\u0338b`, []string{"1 mark on top of another character"}},
		{"bytes", "a\xff\x1b[2J", `a\xff\x1b[2J`, []string{"1 invisible or control character", "1 byte that is not UTF-8"}},
		{"carriage return", "safe\rrm", `safe\rrm`, nil},
	} {
		got := Inspect(tc.in)
		if got.String() != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got.String(), tc.want)
		}
		if tc.warn != nil && strings.Join(got.Warnings, "|") != strings.Join(tc.warn, "|") {
			t.Errorf("%s: warnings %q, want %q", tc.name, got.Warnings, tc.warn)
		}
	}
}

// Two texts never look the same.
func TestInspectIsOneToOne(t *testing.T) {
	seen := map[string]string{}
	for _, s := range []string{"a\u202eb", `a\u202eb`, `a\\u202eb`, "a  b", "a b", "a" + strings.Repeat(" ", 9) + "b", `a\x20{9}b`,
		"а", "a", `\u0430`, "a\u00a0b", "a\tb", `a\tb`, "a\nb", `a\nb`, "a\u200bb", "ab"} {
		i := Inspect(s)
		key := i.String()
		if i.Quoted {
			key = "quoted " + key
		}
		if o, ok := seen[key]; ok {
			t.Errorf("%q and %q are both shown as %q", o, s, key)
		}
		seen[key] = s
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"a\x1b]52;c;QQ\a":                 `a\x1b]52;c;QQ\a`,
		"e" + strings.Repeat("\u0301", 5): "e\u0301\u0301\u0301" + `\u0301\u0301`,
		"👍🏽":                              `👍\U0001f3fd`,
		"\u009b31m":                       `\u009b31m`,
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	long := Lines("x\n" + strings.Repeat("y", 10<<20))
	if len(long) > 2*MaxLine || !strings.Contains(long, "more bytes") {
		t.Errorf("a long line has %d bytes", len(long))
	}
}

func TestStyled(t *testing.T) {
	in := "a\x1b[31mred\x1b[m\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\x1b[2J\x1b[8mhid\x1b]0;t\a\r\u0085\x1bPq\x1b\\ü\n"
	want := "a\x1b[31mred\x1b[mlinkhid" + `\r\u0085ü` + "\n"
	if got := Styled(in); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b[31m\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, out := range []string{Text(s), Inspect(s).String(), ansi.Strip(Styled(s))} {
			for _, r := range out {
				if r != '\n' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co)) {
					t.Fatalf("%q became %q", s, out)
				}
			}
		}
	})
}
