package approve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"msb/tui/foreign"
	"msb/turn/approval"
)

// Subject is what a request asks for, ready to be shown.
type Subject struct {
	Headline string // safe
	// Body is what would run, to the last character.
	Body     foreign.Inspected
	Before   []Field // foreign parts of the headline that need more room
	Reason   string  // the model's words, safe
	Matches  string  // what a remembered rule would match, safe
	Remember string  // label of remembering
	Warnings []string
}

// Field is a named part of a request.
type Field struct {
	Name  string
	Value foreign.Inspected
}

// maxInline is how long a name may be, in cells, to stand in the headline.
const maxInline = 48

// SubjectOf takes a request apart.
func SubjectOf(r approval.Request) Subject {
	var s Subject
	inline := func(name, value string) string {
		v := foreign.Inspect(value)
		for _, w := range v.Warnings {
			s.Warnings = append(s.Warnings, name+": "+w)
		}
		if v.Quoted || v.Lines > 1 || len(value) > maxInline {
			s.Before = append(s.Before, Field{name, v})
			return "(see below)"
		}
		return v.String()
	}
	switch r.Kind {
	case approval.KindCommand:
		s.Headline = "run_command"
		if r.Workdir != "" {
			s.Headline += " in " + inline("folder", r.Workdir)
		}
		if r.User != "" {
			s.Headline += " as " + inline("user", r.User)
		}
		if r.Timeout > 0 {
			s.Headline += ", up to " + Duration(r.Timeout)
		}
		s.Body = foreign.Inspect(r.Command)
		s.Remember = "allow this exact command for the session"
	case approval.KindMCP:
		s.Headline = "MCP call: " + inline("server", r.Server) + " · " + inline("tool", r.MCPTool)
		s.Body = foreign.Inspect(Pretty(r.Arguments))
		if r.Claim != "" {
			s.Before = append(s.Before, Field{"what the server claims of it, unchecked", foreign.Inspect(r.Claim)})
		}
		s.Remember = "allow this tool for the session, whatever its arguments"
	default:
		s.Headline = "a request of an unknown kind: " + inline("kind", r.Kind)
	}
	s.Warnings = append(append([]string(nil), s.Body.Warnings...), s.Warnings...)
	s.Reason = foreign.Text(strings.Join(strings.Fields(r.Reason), " "))
	s.Matches = foreign.Text(r.Matches)
	return s
}

// Pretty is JSON over several lines; what is no JSON stays as it is.
func Pretty(raw json.RawMessage) string {
	var b bytes.Buffer
	if len(raw) == 0 {
		return "no arguments"
	}
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return string(raw)
	}
	return b.String()
}

// Duration is a time for people.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < 90*time.Second:
		return fmt.Sprintf("%d s", int(d/time.Second))
	case d < 90*time.Minute:
		return fmt.Sprintf("%d min", int(d/time.Minute))
	}
	return fmt.Sprintf("%d h", int(d/time.Hour))
}
