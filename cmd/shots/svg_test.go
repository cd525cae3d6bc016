package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestSVG(t *testing.T) {
	s := svg("\x1b[1;31mred\x1b[0m <&> \x1b[7mback\x1b[0m\nwide 世界 end\n", 30, 3)
	for _, want := range []string{`fill="#e06c75" font-weight="bold">red<`, "&lt;&amp;&gt;", `fill="#1b1d23">back<`, "世界"} {
		if !strings.Contains(s, want) {
			t.Errorf("no %s in\n%s", want, s)
		}
	}
	d := xml.NewDecoder(strings.NewReader(s))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
