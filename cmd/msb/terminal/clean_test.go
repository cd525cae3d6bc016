package terminal

import "testing"

func TestForeignTextForgesNoLine(t *testing.T) {
	const name = "a\nmsb: all is well\x1b[2J"
	if got := Line(name); got != "a\ufffdmsb: all is well\ufffd[2J" {
		t.Errorf("Line: %q", got)
	}
	if got := Indented(name, "  "); got != "a\n  msb: all is well\ufffd[2J" {
		t.Errorf("Indented: %q", got)
	}
}
