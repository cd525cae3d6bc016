package visible

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		`ls -l 'a b' \ "c"`:      `ls -l 'a b' \ "c"`,
		"a\tb\nc\rd":             `a\tb\nc\rd`,
		"\x1b[31mred\x1b[0m":     `\x1b[31mred\x1b[0m`,
		"\x00\x7f\u0085":         `\x00\x7f\u0085`,
		"rm \u202egnp.txt":       `rm \u202egnp.txt`,
		"a\u200bb\u2060c\ufeffd": `a\u200bb\u2060c\ufeffd`,
		"a\u00a0b\u2003c\u3000d": `a\u00a0b\u2003c\u3000d`,
		"\u2028\u2029":           `\u2028\u2029`,
		"\ue000\U000f0000":       `\ue000\U000f0000`,
		"\U000e0041\u0378":       `\U000e0041\u0378`,
		"\u3164\u2800":           `\u3164\u2800`,
		"\xff\xc3(\xed\xa0\x80":  `\xff\xc3(\xed\xa0\x80`,
		"\ufffd":                 "\ufffd",
		"grüße 世界 🙂":             "grüße 世界 🙂",
		"e\u0301\ufe0f\u034f":    "e\u0301" + `\ufe0f\u034f`,
	} {
		if got := Text(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	if got := Lines("\ta\tb\n12345678\tc\x1b"); got != "        a       b\n12345678        c\\x1b" {
		t.Errorf("%q", got)
	}
}

// Whatever the category, nothing but what is seen comes out.
func TestEveryRune(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		out := Text(string(r))
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co) || unicode.IsSpace(r) && r != ' ' {
			if out == string(r) || !strings.HasPrefix(out, `\`) {
				t.Fatalf("%U is shown as %q", r, out)
			}
		}
		if !Plain(out) {
			t.Fatalf("%U is shown as %q, which is not plain", r, out)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		out := Text(s)
		if !Plain(out) || strings.ContainsAny(out, "\x1b\n\r\t\x00") {
			t.Errorf("%q is shown as %q", s, out)
		}
	})
}
