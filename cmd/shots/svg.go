package main

import (
	"fmt"
	"html"
	"image/color"
	"strings"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
)

// Size of a cell, in the units of the picture.
const (
	cellWidth  = 8.4
	cellHeight = 18
	fontSize   = 14
	margin     = 10
)

const (
	ground = "#1b1d23"
	ink    = "#d5d8df"
)

// palette is the terminal's sixteen colours.
var palette = [16]string{"#1b1d23", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#abb2bf",
	"#6b7280", "#ef8a92", "#b1d996", "#f0d399", "#83c4f7", "#d79bea", "#7fd1da", "#ffffff"}

// svg draws the cells of a captured screen.
func svg(captured string, w, h int) string {
	e := vt.NewEmulator(w, h)
	_, _ = e.WriteString(strings.ReplaceAll(strings.TrimSuffix(captured, "\n"), "\n", "\r\n"))
	var b strings.Builder
	pw, ph := float64(w)*cellWidth+2*margin, float64(h*cellHeight+2*margin)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.1f %.1f" font-family="ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace" font-size="%d">`+"\n", pw, ph, pw, ph, fontSize)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="6" fill="%s"/>`+"\n", ground)
	for y := range h {
		for x := 0; x < w; {
			n, text, style := alike(e, x, y, w)
			draw(&b, x, y, n, text, style)
			x += n
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// alike is the cells from x on that look the same.
func alike(e *vt.Emulator, x, y, w int) (n int, text string, style uv.Style) {
	for first := true; x+n < w; first = false {
		c := e.CellAt(x+n, y)
		content, width, s := " ", 1, uv.Style{}
		if c != nil {
			s = c.Style
			if c.Content != "" {
				content, width = c.Content, max(c.Width, 1)
			}
		}
		if !first && !s.Equal(&style) {
			break
		}
		style = s
		text += content
		n += width
	}
	return n, text, style
}

func draw(b *strings.Builder, x, y, n int, text string, s uv.Style) {
	fg, bg := hex(s.Fg, ink), hex(s.Bg, "")
	if s.Attrs&uv.AttrReverse != 0 {
		if bg == "" {
			bg = ground
		}
		fg, bg = bg, fg
	}
	left, top := margin+float64(x)*cellWidth, margin+y*cellHeight
	if bg != "" {
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", left, top, float64(n)*cellWidth, cellHeight, bg)
	}
	if strings.TrimSpace(text) == "" {
		return
	}
	more := ""
	if s.Attrs&uv.AttrBold != 0 {
		more += ` font-weight="bold"`
	}
	if s.Attrs&uv.AttrFaint != 0 {
		more += ` opacity="0.6"`
	}
	if s.Attrs&uv.AttrItalic != 0 {
		more += ` font-style="italic"`
	}
	if s.Underline != 0 {
		more += ` text-decoration="underline"`
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%d" textLength="%.1f" xml:space="preserve" fill="%s"%s>%s</text>`+"\n",
		left, top+cellHeight-5, float64(n)*cellWidth, fg, more, html.EscapeString(text))
}

// hex is a colour as pictures write it.
func hex(c color.Color, fallback string) string {
	switch c := c.(type) {
	case nil:
		return fallback
	case ansi.BasicColor:
		return palette[c&15]
	case ansi.IndexedColor:
		if c < 16 {
			return palette[c]
		}
	}
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("#%02x%02x%02x", r>>8, g>>8, b>>8)
}
