package conversation

import (
	"strings"

	"charm.land/glamour/v2"
	"charm.land/glamour/v2/ansi"

	"msb/tui/foreign"
	"msb/tui/pane"
	"msb/tui/theme"
)

// maxMarkdown bounds what is rendered in one piece, in bytes; more, and what
// nests too deep, is shown as it is.
const (
	maxMarkdown = 24 << 10
	maxNesting  = 12
)

// joint keeps characters apart that a renderer would take together: an entity
// would become the character it stands for, and a tag would vanish. No text
// can hold it, since foreign text has its private characters escaped.
const joint = "\ue000"

// markdown renders for one width and theme.
type markdown struct {
	width int
	theme *theme.Theme
	r     *glamour.TermRenderer
}

func newMarkdown(t *theme.Theme, width int) *markdown {
	m := &markdown{width: width, theme: t}
	r, err := glamour.NewTermRenderer(glamour.WithStyles(styles(t)), glamour.WithWordWrap(max(width, 10)),
		glamour.WithChromaFormatter("terminal16"), glamour.WithPreservedNewLines())
	if err == nil {
		m.r = r
	}
	return m
}

// lines renders foreign text.
func (m *markdown) lines(text string) []string {
	safe := foreign.Lines(text)
	if m.r == nil || len(safe) > maxMarkdown || !strings.ContainsAny(safe, "*_`#>[-|1~") || nesting(safe) > maxNesting {
		return trim(pane.Wrap(safe, m.width))
	}
	out, ok := m.render(strings.NewReplacer("&", "&"+joint, "<", "<"+joint).Replace(safe))
	if !ok {
		return trim(pane.Wrap(safe, m.width))
	}
	out = foreign.Styled(strings.ReplaceAll(out, joint, ""))
	lines := strings.Split(out, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return trim(pane.Chop(strings.Join(lines, "\n"), m.width))
}

// render survives whatever the text does to the renderer.
func (m *markdown) render(text string) (out string, ok bool) {
	defer func() {
		if recover() != nil {
			out, ok = "", false
		}
	}()
	out, err := m.r.Render(text)
	return out, err == nil
}

// nesting is the deepest run of characters that nest.
func nesting(s string) int {
	deepest, depth := 0, 0
	for i := range len(s) {
		switch s[i] {
		case '>', '[', '(', '*', '_', '-', '+', '#':
			depth++
			deepest = max(deepest, depth)
		case ' ':
		default:
			depth = 0
		}
	}
	// Rules and emphasis repeat one character, and tables dashes.
	if deepest > maxNesting && !strings.Contains(s, strings.Repeat("> ", maxNesting)) && !strings.Contains(s, strings.Repeat(">", maxNesting)) &&
		!strings.Contains(s, strings.Repeat("[", maxNesting)) && !strings.Contains(s, strings.Repeat("- ", maxNesting)) &&
		!strings.Contains(s, strings.Repeat("* ", maxNesting)) && !strings.Contains(s, strings.Repeat("**", maxNesting)) &&
		!strings.Contains(s, strings.Repeat("_*", maxNesting/2)) && !strings.Contains(s, strings.Repeat("+ ", maxNesting)) {
		return 0
	}
	return deepest
}

// trim drops empty lines at both ends.
func trim(lines []string) []string {
	for len(lines) > 0 && blank(lines[0]) {
		lines = lines[1:]
	}
	for len(lines) > 0 && blank(lines[len(lines)-1]) {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func blank(s string) bool {
	return s == "" || pane.Width(s) == 0 || strings.Trim(s, " ") == ""
}

// styles are in the terminal's own colours.
func styles(t *theme.Theme) ansi.StyleConfig {
	str := func(s string) *string { return &s }
	yes := true
	num := func(n uint) *uint { return &n }
	accent, code := "14", "13"
	keyword, text, number := "#ansiblue", "#ansiteal", "#ansifuchsia"
	if !t.Dark {
		accent, code = "4", "5"
		keyword, text, number = "#ansidarkblue", "#ansidarkgreen", "#ansipurple"
	}
	head := func(prefix string) ansi.StyleBlock {
		return ansi.StyleBlock{StylePrimitive: ansi.StylePrimitive{Prefix: prefix}}
	}
	return ansi.StyleConfig{
		BlockQuote: ansi.StyleBlock{Indent: num(1), IndentToken: str("▎ "), StylePrimitive: ansi.StylePrimitive{Faint: &yes}},
		List:       ansi.StyleList{LevelIndent: 2},
		Heading:    ansi.StyleBlock{StylePrimitive: ansi.StylePrimitive{Color: str(accent), Bold: &yes, BlockSuffix: "\n"}},
		H1:         head(""), H2: head(""), H3: head("· "), H4: head("· "), H5: head("· "), H6: head("· "),
		Strikethrough:  ansi.StylePrimitive{CrossedOut: &yes},
		Emph:           ansi.StylePrimitive{Italic: &yes},
		Strong:         ansi.StylePrimitive{Bold: &yes},
		HorizontalRule: ansi.StylePrimitive{Faint: &yes, Format: "\n────────\n"},
		Item:           ansi.StylePrimitive{BlockPrefix: "• "},
		Enumeration:    ansi.StylePrimitive{BlockPrefix: ". "},
		Task:           ansi.StyleTask{Ticked: "[x] ", Unticked: "[ ] "},
		Link:           ansi.StylePrimitive{Underline: &yes},
		LinkText:       ansi.StylePrimitive{Bold: &yes},
		Image:          ansi.StylePrimitive{Underline: &yes},
		ImageText:      ansi.StylePrimitive{Format: "image: {{.text}}"},
		Code:           ansi.StyleBlock{StylePrimitive: ansi.StylePrimitive{Color: str(code)}},
		CodeBlock: ansi.StyleCodeBlock{StyleBlock: ansi.StyleBlock{Margin: num(2)}, Chroma: &ansi.Chroma{
			Keyword: ansi.StylePrimitive{Color: str(keyword)}, KeywordType: ansi.StylePrimitive{Color: str(keyword)},
			LiteralString: ansi.StylePrimitive{Color: str(text)}, LiteralNumber: ansi.StylePrimitive{Color: str(number)},
			Comment: ansi.StylePrimitive{Color: str("#ansidarkgray")},
		}},
		Table: ansi.StyleTable{},
	}
}
