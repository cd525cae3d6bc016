package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"msb/protocol/turnrpc"
)

// script is the demo provider: no model, no key, no network. It plays a short
// job on the workspace and reacts to what comes back. It keeps nothing: where it
// is in the job it reads off the conversation.
type script struct {
	req  turnrpc.ProviderRequest
	rich bool
	pace time.Duration
	emit func(turnrpc.ProviderEvent) error
}

// Tools that the script knows.
const (
	demoSearch = "demo" + turnrpc.MCPSeparator + "search_issues"
	demoFile   = "MSB-DEMO.md"
	demoRun    = "uname -sr && ls -l"
)

// Steps of the job. Those whose tool is not there are left out.
const (
	stepLook = iota
	stepRead
	stepAsk
	stepEdit
	stepReport
)

// played is the job so far, in the turn under way.
type played struct {
	step    int // to play now
	turn    int
	results map[string]string // by step and tool
}

func (p played) result(step int, tool string) (string, bool) {
	r, ok := p.results[strconv.Itoa(step)+" "+tool]
	return r, ok
}

var demoID = regexp.MustCompile(`^demo_\d+_(\d+)_\d+$`)

// position reads the job so far off the conversation.
func (s script) position() played {
	p := played{results: make(map[string]string)}
	steps := make(map[string]string) // step and tool, by call id
	for _, m := range s.req.Messages {
		switch m.Role {
		case turnrpc.RoleUser:
			p = played{turn: p.turn + 1, results: make(map[string]string)}
		case turnrpc.RoleAssistant:
			if got := demoID.FindStringSubmatch(m.ToolID); got != nil {
				if step, err := strconv.Atoi(got[1]); err == nil {
					p.step = max(p.step, step+1)
					steps[m.ToolID] = got[1] + " " + m.ToolName
				}
			}
		case turnrpc.RoleTool:
			if key := steps[m.ToolID]; key != "" {
				p.results[key] = m.ToolResult
			}
		}
	}
	return p
}

// move is what the script says and calls in one step.
type move struct {
	text  string
	calls []turnrpc.ProviderEvent
}

func (m *move) call(p played, step int, tool string, args any) {
	b, _ := json.Marshal(args)
	m.calls = append(m.calls, turnrpc.ProviderEvent{
		Type: turnrpc.ProviderTool, ToolID: fmt.Sprintf("demo_%d_%d_%d", p.turn, step, len(m.calls)), ToolName: tool, ToolArgs: string(b),
	})
}

// next is the first step from where the job is that has something to call, or
// the report.
func (s script) next(p played) move {
	var m move
	for step := p.step; len(m.calls) == 0; step++ {
		switch {
		case step == stepLook:
			m.text += s.greeting(p.turn)
			if s.has("list_files") {
				m.text += "First I look at what is in the workspace.\n"
				m.call(p, step, "list_files", map[string]any{"path": "."})
			}
		case step == stepRead:
			s.read(p, step, &m)
		case step == stepAsk:
			s.ask(p, step, &m)
		case step == stepEdit:
			s.edit(p, step, &m)
		default:
			m.text += s.report(p)
			return m
		}
	}
	return m
}

func (s script) greeting(turn int) string {
	if turn > 1 {
		return "I am still the scripted demo, so I play the same short job again. "
	}
	return "Hello. I am a scripted demo and not a language model: I need no key and no network, and I do not understand what you write. " +
		"I play a short job so that you can see how a turn goes. "
}

// read opens a file, and searches the issue tracker at the same time.
func (s script) read(p played, step int, m *move) {
	list, _ := p.result(stepLook, "list_files")
	file := pick(list)
	if said := refusalOf(list); said != "" {
		m.text += "I could not list the files (" + said + "). "
	}
	reads, searches := file != "" && s.has("read_file"), s.has(demoSearch)
	switch {
	case reads && searches:
		m.text += fmt.Sprintf("I read %s, and I search the issue tracker, which is an MCP server on the host. You are asked before that call.\n", file)
	case reads:
		m.text += fmt.Sprintf("I read %s.\n", file)
	case searches:
		m.text += "There is no file that I would want to read. I search the issue tracker, which is an MCP server on the host.\n"
	}
	if reads {
		m.call(p, step, "read_file", map[string]any{"path": file})
	}
	if searches {
		m.call(p, step, demoSearch, map[string]any{"query": "demo"})
	}
}

// ask wants to run a command.
func (s script) ask(p played, step int, m *move) {
	if r, ok := p.result(stepRead, "read_file"); ok && refusalOf(r) == "" {
		m.text += fmt.Sprintf("The file has %s. ", count(len(strings.Split(strings.TrimRight(r, "\n"), "\n")), "line"))
	}
	if r, ok := p.result(stepRead, demoSearch); ok {
		if said := refusalOf(r); said != "" {
			m.text += "The call of the issue tracker did not happen (" + said + "); I go on without it. "
		} else {
			m.text += "The issue tracker answered. "
		}
	}
	if s.has("run_command") {
		m.text += "Now I would like to run a command. It runs only if you allow it.\n"
		m.call(p, step, "run_command", map[string]any{"command": demoRun})
	}
}

// edit makes the demo's file, or adds a line to it.
func (s script) edit(p played, step int, m *move) {
	if r, ok := p.result(stepAsk, "run_command"); ok {
		if said := refusalOf(r); said != "" {
			m.text += "The command was not run (" + said + "). That is fine: I do without it. "
		} else {
			m.text += "The command ran. "
		}
	}
	if !s.has("apply_patch") {
		return
	}
	list, _ := p.result(stepLook, "list_files")
	if !listed(list, demoFile) {
		m.text += "Last I make a small file, " + demoFile + ".\n"
		m.call(p, step, "apply_patch", map[string]any{"patch": newFile()})
		return
	}
	content, ok := p.result(stepRead, "read_file")
	if patch := addLine(content); ok && patch != "" {
		m.text += "Last I add a line to " + demoFile + ".\n"
		m.call(p, step, "apply_patch", map[string]any{"patch": patch})
	}
}

func (s script) report(p played) string {
	var b strings.Builder
	if r, ok := p.result(stepEdit, "apply_patch"); ok {
		if said := refusalOf(r); said != "" {
			b.WriteString("The patch was not applied (" + said + "). ")
		} else {
			b.WriteString("The file is changed: `msb diff` shows it, `msb undo` takes it back. ")
		}
	}
	var did []string
	for _, d := range []struct {
		step       int
		tool, what string
	}{
		{stepLook, "list_files", "I looked around"}, {stepRead, demoSearch, "asked an MCP server"},
		{stepAsk, "run_command", "asked for a command"}, {stepEdit, "apply_patch", "edited a file"},
	} {
		if _, ok := p.result(d.step, d.tool); ok {
			did = append(did, d.what)
		}
	}
	if did == nil {
		b.WriteString("There are no tools here, so that is all I can do. ")
	} else {
		b.WriteString("That was the whole job: " + strings.Join(did, ", ") + ". ")
	}
	b.WriteString("For a real model, add a profile with `msb model add`.\n")
	return b.String()
}

// refusalOf says in short why a call gave no result; "" if it did.
func refusalOf(result string) string {
	text := strings.TrimSpace(result)
	lower := strings.ToLower(text)
	failed := strings.HasPrefix(lower, "error:")
	denied := strings.Contains(lower, "denied") && (failed || strings.HasPrefix(lower, "this call was") || len(lower) < 200)
	if !failed && !denied {
		return ""
	}
	text = strings.TrimSpace(strings.TrimPrefix(text, "error:"))
	text, _, _ = strings.Cut(text, "\n")
	return clip(text)
}

// paths reads what list_files gave: JSON, or a path a line.
func paths(list string) []string {
	var p []string
	if json.Unmarshal([]byte(list), &p) == nil {
		return p
	}
	return strings.Fields(list)
}

func listed(list, name string) bool {
	for _, p := range paths(list) {
		if p == name {
			return true
		}
	}
	return false
}

// pick chooses a file to read: the demo's own, a README, or any small text.
func pick(list string) string {
	if refusalOf(list) != "" {
		return ""
	}
	best, rank := "", 0
	for _, p := range paths(list) {
		lower := strings.ToLower(p)
		r := 0
		switch {
		case p == demoFile:
			r = 4
		case strings.HasPrefix(lower, "readme"):
			r = 3
		case strings.Contains(p, "/") || strings.HasPrefix(p, "."):
		case strings.HasSuffix(lower, ".md"), strings.HasSuffix(lower, ".txt"), strings.HasSuffix(lower, ".go"), lower == "makefile":
			r = 2
		case strings.Contains(p, "."):
			r = 1
		}
		if r > rank {
			best, rank = p, r
		}
	}
	return best
}

const demoLine = "The demo was here."

func newFile() string {
	lines := []string{"# A note from the demo", "", demoLine}
	return fmt.Sprintf("diff --git a/%[1]s b/%[1]s\nnew file mode 100644\n--- /dev/null\n+++ b/%[1]s\n@@ -0,0 +1,%d @@\n+%s\n",
		demoFile, len(lines), strings.Join(lines, "\n+"))
}

// numbered is a line with its number before it, as a tool may show a file.
var numbered = regexp.MustCompile(`^\s*\d+[\t|:] ?`)

// addLine is a patch that adds a line at the end of the demo's file; "" if the
// content does not look like it.
func addLine(content string) string {
	lines := strings.Split(strings.TrimRight(content, "\n"), "\n")
	for i, l := range lines {
		lines[i] = numbered.ReplaceAllString(l, "")
	}
	n := len(lines)
	if n < 3 || lines[0] != "# A note from the demo" || lines[n-1] != demoLine {
		return ""
	}
	return fmt.Sprintf("diff --git a/%[1]s b/%[1]s\n--- a/%[1]s\n+++ b/%[1]s\n@@ -%[2]d,1 +%[2]d,2 @@\n %[3]s\n+%[3]s\n", demoFile, n, demoLine)
}

func (s script) has(tool string) bool {
	for _, t := range s.req.Tools {
		if t.Name == tool {
			return true
		}
	}
	return false
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// run plays the next step. Usage is an estimate, so that screens have one to show.
func (s script) run(ctx context.Context) error {
	m := s.next(s.position())
	for _, word := range strings.SplitAfter(m.text, " ") {
		if err := s.emit(turnrpc.ProviderEvent{Type: turnrpc.ProviderText, Text: word}); err != nil {
			return err
		}
		if s.pace > 0 {
			select {
			case <-time.After(s.pace):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	out := &sink{emit: s.emit, rich: s.rich, names: newNames(), stop: stopEnd}
	for i, c := range m.calls {
		out.stop = stopTool
		if err := out.add(out.call(int64(i), c.ToolID), c.ToolID, c.ToolName, c.ToolArgs); err != nil {
			return err
		}
	}
	size := 0
	for _, msg := range s.req.Messages {
		size += len(msg.Content) + len(msg.ToolArgs) + len(msg.ToolResult)
	}
	out.usage = turnrpc.Usage{InputTokens: int64(size/4 + 1), OutputTokens: int64(len(m.text)/4 + 1)}
	return out.finish()
}
