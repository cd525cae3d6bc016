package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestScreenSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	for _, c := range []struct{ text, err string }{
		{"", ""},
		{"screen:\n  keys:\n    boxes.start: [f5]\n    turns.open: [ctrl+g, f4]\n  notify: [notify-send, msb]\n", ""},
		{"screen:\n  keys:\n    boxes.fly: [f5]\n", ":3:5: screen.keys.boxes.fly: there is no such action"},
		{"screen:\n  keys:\n    boxes.start: [f5, hyper]\n", `:3:23: screen.keys.boxes.start: "hyper" is not a key`},
		{"screen:\n  keys:\n    boxes.start:\n      - x\n", `:4:9: screen.keys.boxes.start: "x" is the key of boxes.stop already`},
		{"screen:\n  keys:\n    turns.open: [o]\n", ":3:18: "},
		{"screen:\n  keys:\n    boxes.start: f5\n", ":3:18: "},
		{"screen:\n  keyz: {}\n", ":2:3: "},
		{"screen:\n  notify: [\"\"]\n", ":2:11: screen.notify: the program has no name"},
		{"screen:\n  notify: notify-send\n", ":2:11: "},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, keys, err := loadScreen(path)
		switch {
		case c.err == "" && (err != nil || keys == nil):
			t.Errorf("%s%v", c.text, err)
		case c.err == "" && c.text != "" && (keys.Label("boxes.start") != "F5" || len(s.Notify) != 2):
			t.Errorf("%+v", s)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), "config.yaml"+c.err)):
			t.Errorf("%s%v", c.text, err)
		}
	}
}
