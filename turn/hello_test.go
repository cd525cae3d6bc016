package turn

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"msb/protocol/turnrpc"
)

// What each version of a guest gets from Open, Resume and Probe.
func TestHello(t *testing.T) {
	const (
		accepted = `{"v":4,"id":"hello","result":{"accepted":true,"protocol":4}}`
		withExt  = `{"v":4,"id":"hello","result":{"accepted":true,"protocol":4,"extensions":{"denial_reason":1,"output":1,"tool_started":1}}}`
	)
	incompatible := func(v string) string {
		return `{"v":4,"id":"hello","result":{"accepted":false,"message":"guest protocol ` + v + ` is incompatible with required protocol 4","protocol":4}}`
	}
	v4 := Recorded{Protocol: 4, ImageID: "img"}
	for _, c := range []struct {
		name     string
		start    string // open, resume, probe
		recorded Recorded
		hello    string
		answer   string // "": none
		protocol int    // of an accepted guest
		err      string
		tooOld   bool
	}{
		{"version 4", "open", Recorded{}, hello(4, ""), accepted, 4, "", false},
		{"version 4, our extensions", "open", Recorded{}, hello(4, ours), withExt, 4, "", false},
		{"version 4, other extensions", "open", Recorded{}, hello(4, `,"extensions":{"x":1,"output":0}`), accepted, 4, "", false},
		{"no version", "open", Recorded{}, hello(0, ""), incompatible("1"), 0, "it speaks 1", true},
		{"version 1", "open", Recorded{}, hello(1, ""), incompatible("1"), 0, "make build && make image-update", true},
		{"version 2", "open", Recorded{}, hello(2, ""), incompatible("2"), 0, "it speaks 2", true},
		{"version 3", "open", Recorded{}, hello(3, ""), incompatible("3"), 0, "it speaks 3", true},
		{"version 5", "open", Recorded{}, hello(5, ""), incompatible("5"), 0, "update msb", false},
		{"probe of no version", "probe", Recorded{}, hello(0, ""), accepted, 1, "", false},
		{"probe of version 1", "probe", Recorded{}, hello(1, ""), accepted, 1, "", false},
		{"probe of version 2", "probe", Recorded{}, hello(2, ""), accepted, 2, "", false},
		{"probe of version 3", "probe", Recorded{}, hello(3, ours), accepted, 3, "", false},
		{"probe of version 4", "probe", Recorded{}, hello(4, ""), accepted, 4, "", false},
		{"probe of version 5", "probe", Recorded{}, hello(5, ""), incompatible("5"), 0, "update msb", false},
		{"resume", "resume", v4, hello(4, ""), accepted, 4, "", false},
		{"resume of a session of version 3", "resume", Recorded{Protocol: 3}, "", "", 0, "recorded with an old guest", true},
		{"resume of a session of no version", "resume", Recorded{}, "", "", 0, "it speaks 1", true},
		{"resume, older guest", "resume", v4, hello(2, ""), incompatible("2"), 0, "it speaks 2", true},
		{"resume, other image", "resume", Recorded{Protocol: 4, ImageID: "x"}, hello(4, ""),
			`{"v":4,"id":"hello","result":{"accepted":false,"message":"guest image \"img\" differs from the image \"x\" of this session","protocol":4}}`, 0, "differs from the image", false},
		{"no image", "open", Recorded{}, strings.Replace(hello(4, ""), `"img"`, `""`, 1),
			`{"v":4,"id":"hello","result":{"accepted":false,"message":"guest names no image","protocol":4}}`, 0, "names no image", false},
		{"wrong capability", "open", Recorded{}, strings.Replace(hello(4, ""), testCap, "5ec2e8", 1), "", 0, "capability mismatch", false},
		{"no capability", "open", Recorded{}, strings.Replace(hello(4, ""), testCap, "", 1), "", 0, "capability mismatch", false},
		{"wrong session", "open", Recorded{}, strings.Replace(hello(4, ""), testID, "x", 1), "", 0, "capability mismatch", false},
		{"other method first", "open", Recorded{}, `{"v":4,"id":"1","method":"user_turn"}`, "", 0, `began with method "user_turn"`, false},
		{"no params", "open", Recorded{}, `{"v":4,"id":"hello","method":"hello"}`, "", 0, "empty params", false},
		{"not JSON", "open", Recorded{}, `hello`, "", 0, "malformed", false},
		{"wrong type", "open", Recorded{}, `{"v":4,"id":"hello","method":"hello","params":{"session_id":3}}`, "", 0, "session_id", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := script(t, func(g *guest) {
				if c.hello != "" {
					g.say(c.hello)
				}
				g.expect(c.answer)
			})
			o := options()
			o.Recorded = c.recorded
			var s *Session
			var err error
			switch c.start {
			case "open":
				s, err = Open(t.Context(), conn, o)
			case "resume":
				s, err = Resume(t.Context(), conn, o)
			case "probe":
				s, err = Probe(t.Context(), conn, o)
			}
			if err == nil {
				defer s.Close()
				defer conn.Close()
				if v := s.Capabilities().Protocol; v != c.protocol {
					t.Errorf("protocol %d", v)
				}
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || errors.Is(err, ErrGuestTooOld) != c.tooOld {
				t.Errorf("error: %v", err)
			}
		})
	}
}

func TestCapabilities(t *testing.T) {
	for v, want := range map[int]Capabilities{
		1: {Protocol: 1},
		2: {Protocol: 2, Cancel: true, RichEvents: true, TurnOptions: true},
		3: {Protocol: 3, Cancel: true, RichEvents: true, TurnOptions: true},
		4: {Protocol: 4, Cancel: true, RichEvents: true, TurnOptions: true, Approvals: true, MCPBroker: true},
	} {
		conn := script(t, func(g *guest) { g.say(hello(v, "")); g.frame() })
		s, err := Probe(t.Context(), conn, options())
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Capabilities(); got != want {
			t.Errorf("version %d: %+v", v, got)
		}
		conn.Close()
		s.Close()
	}
}

// A probe looks at files and runs no turn on an old guest, whose calls get the
// answer of their version.
func TestProbe(t *testing.T) {
	for _, c := range []struct {
		version int
		call    string
		answer  string
	}{
		{1, "provider_open", "provider_open requires protocol 3, guest speaks 1"},
		{2, "provider_send", "provider_send requires protocol 3, guest speaks 2"},
		{2, "mcp_list", "mcp_list requires protocol 4, guest speaks 2"},
		{3, "provider_open", "guest calls not supported by this host"},
		{3, "mcp_call", "mcp_call requires protocol 4, guest speaks 3"},
		{3, "request_run_command_approval", "request_run_command_approval requires protocol 4, guest speaks 3"},
		{4, "mcp_list", "guest calls not supported by this host"},
		{4, "format_disk", "unknown guest method format_disk"},
	} {
		conn := script(t, func(g *guest) {
			g.say(hello(c.version, ""))
			g.frame()
			g.expect(`{"v":4,"id":"1","method":"list_files","params":{"path":".","depth":4,"limit":50}}`)
			g.sayf(`{"v":1,"id":"g-1","method":%q,"params":{}}`, c.call)
			g.expect(`{"v":4,"id":"g-1","error":{"code":"host","message":"` + c.answer + `"}}`)
			g.say(`{"v":1,"id":"1","result":{"paths":["a","b"]}}`)
			if c.version < 4 {
				return
			}
			g.expect(`{"v":4,"id":"2","method":"user_turn","params":{"text":"hi"}}`)
			g.say(`{"v":4,"id":"2","result":{"ok":true}}`)
		})
		s, err := Probe(t.Context(), conn, options())
		if err != nil {
			t.Fatal(err)
		}
		paths, err := s.ListFiles(t.Context(), turnrpc.ListFiles{Path: ".", Depth: 4, Limit: 50})
		if err != nil || strings.Join(paths, " ") != "a b" {
			t.Errorf("%v %v", paths, err)
		}
		_, err = s.Turn(t.Context(), "hi", TurnOptions{}, func(Event) {})
		if errors.Is(err, ErrGuestTooOld) != (c.version < 4) {
			t.Errorf("turn on version %d: %v", c.version, err)
		}
		conn.Close()
		s.Close()
	}
}

func TestHelloTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		_, err := Open(t.Context(), script(t, func(*guest) {}), options())
		if err == nil || !strings.Contains(err.Error(), "no hello in 15s") || time.Since(begun) != HelloTimeout {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}
