package turn

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"msb/guest/turn/tree"
	"msb/protocol/turnrpc"
)

// tool is a tool of the agent's own.
type tool struct {
	turnrpc.Tool
	run func(t *turn, c toolCall) (string, error)
}

// builtins are the five tools of the contract. Every schema says what is required.
var builtins []tool

func init() { // the tools refer to the loop that looks them up
	builtins = []tool{
		{turnrpc.Tool{
			Name:        turnrpc.MethodListFiles,
			Description: "List files and folders below a folder of the workspace. Folders end with /.",
			Parameters: schema(`{"type":"object","properties":{
				"path":{"type":"string","description":"folder, relative to the workspace; \".\" is the workspace itself"},
				"depth":{"type":"integer","minimum":1,"maximum":8,"description":"levels to go down, 6 if not given"}},
				"required":["path"]}`),
		}, (*turn).listFiles},
		{turnrpc.Tool{
			Name:        turnrpc.MethodReadFile,
			Description: "Read a text file of the workspace, or some lines of it. What does not fit is cut, and the answer says where to go on.",
			Parameters: schema(`{"type":"object","properties":{
				"path":{"type":"string","description":"file, relative to the workspace"},
				"start_line":{"type":"integer","minimum":1,"description":"first line to read"},
				"end_line":{"type":"integer","minimum":1,"description":"last line to read"}},
				"required":["path"]}`),
		}, (*turn).readFile},
		{turnrpc.Tool{
			Name:        turnrpc.MethodSearch,
			Description: "Search the text files of the workspace line by line. Answers with path:line: text.",
			Parameters: schema(`{"type":"object","properties":{
				"query":{"type":"string","description":"text to look for, in any case; or a regular expression (RE2)"},
				"is_regex":{"type":"boolean","description":"query is a regular expression; case matters unless it begins with (?i)"},
				"path":{"type":"string","description":"folder or file to search, the workspace if not given"},
				"limit":{"type":"integer","minimum":1,"maximum":200,"description":"matches, 40 if not given"}},
				"required":["query"]}`),
		}, (*turn).search},
		{turnrpc.Tool{
			Name:        turnrpc.MethodApplyPatch,
			Description: "Change, create, delete or rename files of the workspace with a unified diff, as git diff prints it: --- a/FILE, +++ b/FILE, @@ lines, and three lines of context around each change. New files come from /dev/null, deleted ones go to /dev/null. All of it applies, or nothing.",
			Parameters: schema(`{"type":"object","properties":{
				"patch":{"type":"string","description":"the unified diff"}},
				"required":["patch"]}`),
		}, (*turn).applyPatch},
		{turnrpc.Tool{
			Name:        turnrpc.MethodRunCommand,
			Description: "Run a command with /bin/sh -c in the workspace, after the user has allowed it. Answers with the exit code and what the command printed; long output is cut in the middle.",
			Parameters: schema(`{"type":"object","properties":{
				"command":{"type":"string","description":"the whole command, at most 16384 bytes"},
				"workdir":{"type":"string","description":"folder to run in, relative to the workspace"},
				"timeout_sec":{"type":"integer","minimum":1,"maximum":600,"description":"seconds until it is killed, 60 if not given"},
				"reason":{"type":"string","description":"one short sentence for the user: what the command is for"}},
				"required":["command"]}`),
		}, (*turn).runCommand},
	}
}

func schema(s string) json.RawMessage {
	b, err := json.Marshal(json.RawMessage(s))
	if err != nil {
		panic("a schema of the agent's own is no JSON: " + err.Error())
	}
	return b
}

func builtin(name string) *tool {
	for i := range builtins {
		if builtins[i].Name == name {
			return &builtins[i]
		}
	}
	return nil
}

// arguments reads a call's arguments. A number in quotes counts as a number: models write both.
func arguments(c toolCall, v any, required ...string) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal([]byte(c.args), &given); err != nil {
		return fmt.Errorf("the arguments are no JSON object: %w", err)
	}
	for _, name := range required {
		if raw, ok := given[name]; !ok || string(raw) == "null" {
			return fmt.Errorf("the argument %q is missing", name)
		}
	}
	if err := json.Unmarshal([]byte(c.args), v); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return fmt.Errorf("the argument %q is a %s and should be a %s", kind.Field, kind.Value, kind.Type)
		}
		return fmt.Errorf("the arguments do not parse: %w", err)
	}
	return nil
}

// integer is a number that may come in quotes or with a fraction of nothing.
type integer int

// UnmarshalJSON reads 5, 5.0 and "5".
func (n *integer) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal([]byte(strings.Trim(string(b), `"`)), &f); err != nil || f != float64(int(f)) {
		return &json.UnmarshalTypeError{Value: string(b), Field: "number", Type: reflect.TypeFor[int]()}
	}
	*n = integer(f)
	return nil
}

// Limits of the agent's calls of the file tools, where they are tighter than the contract's.
const (
	modelDepth    = 6
	modelPaths    = 500
	modelRead     = 48 << 10
	modelMatches  = 40
	modelMatchMax = 200
)

func (t *turn) listFiles(c toolCall) (string, error) {
	var p struct {
		Path  string  `json:"path"`
		Depth integer `json:"depth"`
	}
	if err := arguments(c, &p); err != nil {
		return "", err
	}
	depth := int(p.Depth)
	if depth <= 0 {
		depth = modelDepth
	}
	list, more, err := t.a.cfg.Tree.List(t.ctx, p.Path, tree.ListOptions{Depth: min(depth, turnrpc.MaxListDepth), Limit: modelPaths})
	if err != nil {
		return "", err
	}
	paths := make([]string, len(list))
	for i, e := range list {
		paths[i] = e.Path
		if e.Dir {
			paths[i] += "/"
		}
	}
	if len(paths) == 0 {
		return "no matches", nil
	}
	b, err := plainJSON(paths)
	if err != nil {
		return "", err
	}
	text := middleCut(b, maxModelResult)
	if more {
		text += fmt.Sprintf("\n[only the %d entries nearest to the top; list a folder below for more]", len(paths))
	}
	return text, nil
}

// plainJSON encodes without the escapes for HTML, which cost a model tokens.
func plainJSON(v any) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

func (t *turn) readFile(c toolCall) (string, error) {
	var p struct {
		Path  string  `json:"path"`
		Start integer `json:"start_line"`
		End   integer `json:"end_line"`
	}
	if err := arguments(c, &p, "path"); err != nil {
		return "", err
	}
	if p.End > 0 && p.End < p.Start {
		return "", fmt.Errorf("end_line %d is before start_line %d", p.End, p.Start)
	}
	text, err := t.a.cfg.Tree.ReadText(t.ctx, p.Path, tree.ReadOptions{MaxBytes: modelRead, Start: int(p.Start), End: int(p.End)})
	if err != nil {
		return "", err
	}
	if text.Binary {
		return "[binary file]", nil
	}
	if text.Truncated {
		last := text.Start + text.Lines - 1
		if strings.HasSuffix(text.Content, "\n") {
			return text.Content + fmt.Sprintf("[cut after line %d of a file of %d bytes; go on with start_line %d]", last, text.Size, last+1), nil
		}
		return text.Content + fmt.Sprintf("\n[cut in line %d of a file of %d bytes]", last, text.Size), nil
	}
	return text.Content, nil
}

func (t *turn) search(c toolCall) (string, error) {
	var p struct {
		Query string  `json:"query"`
		Regex bool    `json:"is_regex"`
		Path  string  `json:"path"`
		Limit integer `json:"limit"`
	}
	if err := arguments(c, &p, "query"); err != nil {
		return "", err
	}
	limit := int(p.Limit)
	if limit <= 0 {
		limit = modelMatches
	}
	found, err := t.a.cfg.Tree.Search(t.ctx, p.Path, tree.SearchOptions{Query: p.Query, Regex: p.Regex, Limit: min(limit, modelMatchMax)})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, m := range found.Matches {
		fmt.Fprintf(&b, "%s:%d: %s\n", m.Path, m.Line, m.Text)
	}
	if len(found.Matches) == 0 {
		b.WriteString("no matches\n")
	}
	if found.More {
		fmt.Fprintf(&b, "[only the first %d matches]\n", len(found.Matches))
	}
	if found.Partial {
		b.WriteString("[the search took too long and was ended; search a folder below]\n")
	}
	if found.Skipped > 0 {
		fmt.Fprintf(&b, "[%d large files were not searched]\n", found.Skipped)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}
