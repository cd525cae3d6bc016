package foreign

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"msb/turn/visible"
)

// Inspected is text that someone has to decide on, to the last character. It is
// quoted when anything in it could deceive: backslashes are then doubled, so
// that what is shown is one text and no other.
type Inspected struct {
	Parts  []Part // what to show; line feeds are parts of their own
	Quoted bool
	// Warnings say what is in the text that a reader would miss, with counts.
	Warnings []string
	Lines    int // in the text itself
	Bytes    int
}

// Part is a piece of inspected text.
type Part struct {
	Text   string
	Marked bool // stands for something that would not be seen
	Break  bool // a line feed follows here
}

// Spaces in a row that are shown as they are; more are shown as a number.
const maxSpaces = 8

// String is the text as it is shown where there are no styles.
func (t Inspected) String() string {
	var b strings.Builder
	for _, p := range t.Parts {
		if p.Break {
			b.WriteByte('\n')
			continue
		}
		b.WriteString(p.Text)
	}
	return b.String()
}

// tally counts what was made visible.
type tally struct {
	hidden, spaces, looks, rtl, marks, broken, tabs, odd int
	lookList                                             []rune
}

// Inspect takes text apart.
func Inspect(s string) Inspected {
	var n tally
	parts := dissect(s, false, &n)
	t := Inspected{Bytes: len(s), Lines: strings.Count(s, "\n") + 1}
	if !n.empty() {
		t.Quoted = true
		n = tally{}
		parts = dissect(s, true, &n)
	}
	t.Parts = parts
	t.Warnings = n.words()
	return t
}

func (n *tally) empty() bool {
	return n.hidden+n.spaces+n.looks+n.rtl+n.marks+n.broken+n.tabs+n.odd == 0
}

func (n *tally) words() []string {
	var w []string
	add := func(count int, one, many string) {
		if count == 1 {
			w = append(w, "1 "+one)
		} else if count > 1 {
			w = append(w, fmt.Sprintf("%d %s", count, many))
		}
	}
	add(n.hidden, "invisible or control character", "invisible or control characters")
	add(n.broken, "byte that is not UTF-8", "bytes that are not UTF-8")
	add(n.spaces, "run of many spaces", "runs of many spaces")
	add(n.tabs, "tab", "tabs")
	add(n.marks, "mark on top of another character", "marks on top of other characters")
	add(n.rtl, "letter written from right to left", "letters written from right to left")
	add(n.odd, "character that is drawn differently from terminal to terminal", "characters that are drawn differently from terminal to terminal")
	add(n.looks, "look-alike letter", "look-alike letters")
	if len(n.lookList) > 0 {
		var list []string
		for _, r := range n.lookList[:min(len(n.lookList), 4)] {
			list = append(list, fmt.Sprintf("%s is %s and looks like %s", visible.Escape(r), script(r), looksLike(r)))
		}
		if more := len(n.lookList) - 4; more > 0 {
			list = append(list, fmt.Sprintf("%d more", more))
		}
		w[len(w)-1] += " (" + strings.Join(list, "; ") + ")"
	}
	return w
}

func dissect(s string, quote bool, n *tally) []Part {
	var parts []Part
	var plain strings.Builder
	flush := func() {
		if plain.Len() > 0 {
			parts = append(parts, Part{Text: plain.String()})
			plain.Reset()
		}
	}
	mark := func(text string) {
		flush()
		parts = append(parts, Part{Text: text, Marked: true})
	}
	var before rune
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '\n':
			flush()
			parts = append(parts, Part{Break: true})
		case r == ' ':
			run := 1
			for i+run < len(s) && s[i+run] == ' ' {
				run++
			}
			size = run
			end := i+run == len(s) || s[i+run] == '\n'
			start := before == 0 || before == '\n'
			// Indentation is no padding, as long as it is short.
			if run <= maxSpaces && !end || start && run <= 16 && !end {
				plain.WriteString(s[i : i+run])
			} else {
				n.spaces++
				if run == 1 {
					mark(`\x20`)
				} else {
					mark(fmt.Sprintf(`\x20{%d}`, run))
				}
			}
		case r == '\t':
			n.tabs++
			mark(`\t`)
		case r == utf8.RuneError && size == 1:
			n.broken++
			mark(fmt.Sprintf(`\x%02x`, s[i]))
		case r < utf8.RuneSelf && !unicode.IsControl(r):
			if r == '\\' && quote {
				plain.WriteString(`\\`)
			} else {
				plain.WriteRune(r)
			}
		case !visible.Plain(s[i : i+size]):
			n.hidden++
			mark(visible.Escape(r))
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Mc):
			n.marks++
			mark(visible.Escape(r))
		case joins(r):
			n.odd++
			mark(visible.Escape(r))
		case rightToLeft(r):
			n.rtl++
			mark(visible.Escape(r))
		case looksLike(r) != "":
			n.looks++
			if !slices.Contains(n.lookList, r) {
				n.lookList = append(n.lookList, r)
			}
			mark(visible.Escape(r))
		default:
			plain.WriteString(s[i : i+size])
		}
		before = r
		i += size
	}
	flush()
	return parts
}

// rightToLeft letters make terminals reorder a whole line.
func rightToLeft(r rune) bool {
	return r >= 0x590 && r <= 0x8ff || r >= 0xfb1d && r <= 0xfdff || r >= 0xfe70 && r <= 0xfeff || r >= 0x10800 && r <= 0x10fff || r >= 0x1e800 && r <= 0x1efff
}

// looksLike is the ASCII text that a character passes for; "" for none.
func looksLike(r rune) string {
	switch {
	case r < utf8.RuneSelf:
		return ""
	case r >= 0xff01 && r <= 0xff5e: // full width
		return string(r - 0xfee0)
	case r >= 0x1d400 && r <= 0x1d6a3: // mathematical letters
		return string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[(r-0x1d400)%52])
	case r >= 0x1d6a4 && r <= 0x1d7cb:
		return "a letter"
	case r >= 0x1d7ce && r <= 0x1d7ff:
		return string('0' + (r-0x1d7ce)%10)
	case r >= 0x2460 && r <= 0x24ff, r >= 0x1f100 && r <= 0x1f1e5:
		return "a letter or number"
	case r >= 0x2100 && r <= 0x214f:
		return "a letter"
	case r >= 0x2160 && r <= 0x217f:
		return "a Roman number"
	case r >= 0x2070 && r <= 0x209c:
		return "a small number or letter"
	case r >= 0x2010 && r <= 0x2015, r == 0x2212, r == 0x2043, r == 0x02d7, r == 0xfe58, r == 0x30fc:
		return "-"
	}
	if s, ok := alike[r]; ok {
		return s
	}
	// Scripts whose letters are drawn like Latin ones.
	if unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Cherokee, unicode.Lisu, unicode.Coptic, unicode.Deseret) && unicode.IsLetter(r) {
		return "a Latin letter"
	}
	return ""
}

var alike = pairs(
	"аaвbсcеeнhіiјjкkмmоoрpгrѕsтtуyхxԁdԛqԝwһhӏlҮYАAВBЕEКKМMНHОOРPСCТTХXІIЈJЅSЗ3ЬbѴV",
	"αaβbγyεeηnιiκkνvοoρpτtυuχxωwΑAΒBΕEΖZΗHΙIΚKΜMΝNΟOΡPΤTΥYΧX",
	"ıiɑaɡgɩiʟlʀrɪiɴnʙbʜhꞌ'ƽ5ǀ|ǃ!ɢgʏyſsƖlȷjꜱs",
	"‘'’'‚,‛'“\"”\"„\"′'″\"‹<›>«\"»\"´'ˈ'ʹ'ʼ'ʻ'ˊ'",
	"∕/⁄/⧸/╱/⟋/∖\\⧵\\﹨\\╲\\∣|│|┃|❘|¦|︱|",
	"։:׃:˸:∶:꞉:‥.․.·.•.‧.∙.⋅.。.；;;;，,、,",
	"∗*⁎*✱*﹡*＊*˜~∼~〜~˗-⁓~ˆ^˄^⟨(⟩)❨(❩)〈<〉>＜<＞>˂<˃>≺<≻>",
	"﹟#﹩$﹪%﹠&﹖?﹗!﹫@﹢+﹦=₋-⁺+⁼=‐-＄$٪%᛫.ǁ|‖|",
)

func pairs(lists ...string) map[rune]string {
	m := make(map[rune]string)
	for _, l := range lists {
		rs := []rune(l)
		for i := 0; i+1 < len(rs); i += 2 {
			m[rs[i]] = string(rs[i+1])
		}
	}
	return m
}

// script names the writing that a letter belongs to.
func script(r rune) string {
	for _, s := range []struct {
		name  string
		table *unicode.RangeTable
	}{{"Cyrillic", unicode.Cyrillic}, {"Greek", unicode.Greek}, {"Armenian", unicode.Armenian}, {"Cherokee", unicode.Cherokee},
		{"Lisu", unicode.Lisu}, {"Coptic", unicode.Coptic}, {"Latin", unicode.Latin}} {
		if unicode.Is(s.table, r) {
			return s.name + " " + string(r)
		}
	}
	return "a symbol " + string(r)
}
