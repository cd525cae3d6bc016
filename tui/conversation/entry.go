package conversation

import (
	"encoding/json"
	"strings"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/approval"
)

// kind says who or what an entry is about.
type kind int

const (
	user  kind = iota // the user's words
	agent             // the model's
	tool              // a call of a tool
	note              // the host's
)

// States of a tool call.
const (
	running  = "running"
	waiting  = "waiting" // for the user
	done     = "done"
	failed   = "failed"
	denied   = "denied"
	canceled = "canceled"
)

// Bounds of what an entry keeps, in bytes. The whole is in the transcript.
const (
	maxText   = 48 << 10
	maxOutput = 96 << 10
)

// entry is one thing in the conversation.
type entry struct {
	kind        kind
	turn        string
	first, last uint64 // events it is made of
	text        string // of user, agent and note
	alert       bool   // a note about something that went wrong
	more        bool   // goes on from the entry before

	name, args, id string
	state          string
	began, ended   time.Time
	out            []byte // the last of what a command printed
	dropped        int64  // bytes before that
	lines          int
	result, err    string
	how            string // who allowed or denied it
	mcp            bool

	open  bool // shown in full
	cache cache
}

type cache struct {
	width int
	rev   int // of the content
	drawn int
	lines []string
	opens bool
}

func (e *entry) touch() { e.cache.rev++ }

func (e *entry) size() int {
	return len(e.text) + len(e.args) + len(e.out) + len(e.result) + len(e.err) + 256
}

// print adds output of a command.
func (e *entry) print(s string) {
	e.lines += strings.Count(s, "\n")
	e.out = append(e.out, s...)
	if over := len(e.out) - maxOutput; over > maxOutput/2 {
		e.out = append([]byte(nil), e.out[over:]...)
		e.dropped += int64(over)
	}
	e.touch()
}

// settle ends a call that got no result.
func (e *entry) settle(state string, at time.Time) {
	if e.kind == tool && (e.state == running || e.state == waiting) {
		e.state, e.ended = state, at
		e.touch()
	}
}

// decided notes the outcome of a request.
func (e *entry) decided(o *approval.Outcome) {
	who := o.By
	if i := strings.LastIndex(who, " (uid"); i > 0 {
		who = who[:i]
	}
	switch {
	case o.Allowed && o.Cause == approval.CauseRule:
		e.how = "allowed by a rule"
	case o.Allowed:
		e.how = "allowed"
		if who != "" {
			e.how += " by " + who
		}
	default:
		e.how = o.Tell()
	}
	if o.Allowed {
		e.state = running
	} else {
		e.state = denied
	}
	e.touch()
}

// argument is one of the call's arguments as text.
func (e *entry) argument(name string) string { return Argument(e.args, name) }

// Argument is one of a call's arguments as text, "" if it has none of that
// name.
func Argument(args, name string) string {
	var m map[string]json.RawMessage
	if json.Unmarshal([]byte(args), &m) != nil {
		return ""
	}
	var s string
	if json.Unmarshal(m[name], &s) == nil {
		return s
	}
	return string(m[name])
}

// Title is the name of a call and its arguments in short; both are foreign.
func Title(tool, args string) (name, short string) {
	e := entry{name: tool, args: args}
	e.mcp = strings.Contains(tool, turnrpc.MCPSeparator)
	return e.title()
}

// title is the name of the call and its arguments in short, foreign both.
func (e *entry) title() (name, short string) {
	if server, t, ok := strings.Cut(e.name, turnrpc.MCPSeparator); ok && e.mcp {
		return "mcp", server + " · " + t + " " + e.args
	}
	switch e.name {
	case turnrpc.MethodRunCommand:
		return "run", firstLine(e.argument("command"))
	case turnrpc.MethodReadFile:
		short = e.argument("path")
		if a, b := e.argument("start_line"), e.argument("end_line"); a != "" || b != "" {
			short += ":" + a + "-" + b
		}
		return "read", short
	case turnrpc.MethodListFiles:
		return "list", e.argument("path")
	case turnrpc.MethodSearch:
		short = e.argument("query")
		if p := e.argument("path"); p != "" {
			short += " in " + p
		}
		return "search", short
	case turnrpc.MethodApplyPatch:
		return "patch", patched(e.argument("patch"))
	}
	return e.name, e.args
}

func firstLine(s string) string {
	line, rest, more := strings.Cut(s, "\n")
	if more && strings.TrimSpace(rest) != "" {
		line += " …"
	}
	return line
}

// patched names the files of a patch and counts its lines.
func patched(p string) string {
	var files []string
	added, removed := 0, 0
	for l := range strings.SplitSeq(p, "\n") {
		switch {
		case strings.HasPrefix(l, "+++ "), strings.HasPrefix(l, "--- "):
			f := strings.TrimPrefix(strings.TrimPrefix(l[4:], "a/"), "b/")
			if f != "/dev/null" && (len(files) == 0 || files[len(files)-1] != f) {
				files = append(files, f)
			}
		case strings.HasPrefix(l, "+"):
			added++
		case strings.HasPrefix(l, "-"):
			removed++
		}
	}
	s := strings.Join(files, ", ")
	return s + " +" + itoa(added) + " −" + itoa(removed)
}
