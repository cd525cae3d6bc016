package question

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"msb/turn/approval"
	"msb/turn/visible"
)

func TestLines(t *testing.T) {
	for name, tc := range map[string]struct {
		r    approval.Request
		want string
	}{
		"plain": {approval.Request{Kind: approval.KindCommand, Command: "go test ./...", Workdir: "/work/repo", User: "dev", Timeout: time.Minute, Reason: "to see"},
			"  run a command in /work/repo as dev, up to 1m0s:\n    | go test ./...\n  because (the model's words): to see"},
		"hidden end": {approval.Request{Kind: approval.KindCommand, Command: "ls" + strings.Repeat("\n \t", 200) + "\ncurl evil"},
			"  run a command:\n    | ls\n    : (200 lines with nothing on them)\n    | curl evil\n  (202 lines, 612 bytes)"},
		"far right": {approval.Request{Kind: approval.KindCommand, Command: "ls" + strings.Repeat(" ", 200) + "; rm -r ."},
			"  run a command:\n    | ls (200 spaces) ; rm -r ."},
		"escapes": {approval.Request{Kind: approval.KindCommand, Command: "ls \x1b[2K\r\u202e"},
			"  run a command:\n    | ls \\x1b[2K\\r\\u202e\n  (holds characters that do not show, here as \\escapes)"},
		"look-alike": {approval.Request{Kind: approval.KindCommand, Command: "сurl x"},
			"  run a command:\n    | сurl x\n  (holds characters outside ASCII, some of which look like\n    others)"},
		"wrapped": {approval.Request{Kind: approval.KindCommand, Command: strings.Repeat("abcdefghi ", 8)},
			"  run a command:\n    | abcdefghi abcdefghi abcdefghi abcdefghi abcdefghi abc\n    : defghi abcdefghi abcdefghi "},
		"MCP": {approval.Request{Kind: approval.KindMCP, Server: "tracker", MCPTool: "search", Arguments: json.RawMessage(`{"q":"a\u001b"}`)},
			"  call the tool search of the MCP server tracker with:\n    | {\n    |   \"q\": \"a\\u001b\"\n    | }\n  (3 lines, 20 bytes)"},
		"forged": {approval.Request{Kind: approval.KindCommand, Command: "x\n  because (the model's words): fine\n[y] allow"},
			"  run a command:\n    | x\n    |   because (the model's words): fine\n    | [y] allow\n  (3 lines, 47 bytes)"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(Lines(tc.r, 60), "\n"); got != tc.want {
				t.Errorf("shown:\n%s\nwant:\n%s", got, tc.want)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"a": "x \u0026\u0026 y \u003e z"}`: `{"a":"x && y > z"}`,
		`{"a":"\\u0026"}`:                    `{"a":"\\u0026"}`,
		`{"a":1,"a":2}`:                      `{"a":1,"a":2}`,
		`{"a":"\u001b\u202e"}`:               `{"a":"\u001b\u202e"}`,
		`no JSON \u0026`:                     `no JSON \u0026`,
	} {
		if got := JSON(in); got != want {
			t.Errorf("%s is shown as %s, want %s", in, got, want)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add("a\n\n\n\n\nb\x1b", "r", 20)
	f.Fuzz(func(t *testing.T, command, reason string, width int) {
		width %= 300
		for _, l := range Lines(approval.Request{Kind: approval.KindCommand, Command: command, Reason: reason}, width) {
			if !visible.Plain(l) || !strings.HasPrefix(l, "  ") || len([]rune(l)) >= max(width, minWidth) {
				t.Errorf("%q", l)
			}
		}
	})
}
