package turnrpc

import (
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"
)

// frameOverhead is more than the bytes of a frame around its id and body.
const frameOverhead = 256

// maxEvent bounds the encoded params of an event.
const maxEvent = 512 << 10

// FitResult encodes a result in at most limit bytes. The known results that
// may be too large are cut, with a marker where the rest was: command output in
// the middle, file content and MCP text at the end, lists at their end, a patch
// between files. Anything else is an error that says so.
func FitResult(result any, limit int) (json.RawMessage, error) {
	b, err := json.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	if len(b) <= limit {
		return b, nil
	}
	size := len(b)
	switch r := deref(result).(type) {
	case RunCommandResult:
		// Half for each stream; what one does not need the other may have.
		room := limit - 1024
		out, errs := encodedLen(r.Stdout), encodedLen(r.Stderr)
		r.Stdout = cutMiddle(r.Stdout, max(room-errs, room/2))
		r.Stderr = cutMiddle(r.Stderr, max(room-out, room/2))
		r.Truncated = true
		result = r
	case ReadFileResult:
		r.Content, r.Truncated = cutEnd(r.Content, limit-256), true
		result = r
	case ApplyPatchResult:
		r.Output = cutMiddle(r.Output, limit-256)
		result = r
	case MCPResult:
		r.Text, r.Truncated = cutEnd(r.Text, limit-256), true
		result = r
	case ListFilesResult:
		result = ListFilesResult{Paths: cutList(r.Paths, limit-256)}
	case SearchResult:
		result = SearchResult{Matches: cutList(r.Matches, limit-256)}
	case MCPTools:
		result = MCPTools{Tools: cutTools(r.Tools, limit-256)}
	case Context:
		result = Context{History: TrimHistory(r.History, min(limit-256, MaxHistory))}
	case PatchResult:
		result = fitPatch(r, limit-256)
	default:
		return nil, fmt.Errorf("the result does not fit in one answer: %d bytes encoded, allowed are %d", size, limit)
	}
	b, err = json.Marshal(result)
	if err == nil && len(b) > limit {
		err = fmt.Errorf("the result does not fit in one answer: %d bytes encoded, allowed are %d", size, limit)
	}
	return b, err
}

// deref turns a pointer to one of the results into the result.
func deref(result any) any {
	switch r := result.(type) {
	case *RunCommandResult:
		return *r
	case *ReadFileResult:
		return *r
	case *ApplyPatchResult:
		return *r
	case *MCPResult:
		return *r
	case *ListFilesResult:
		return *r
	case *SearchResult:
		return *r
	case *MCPTools:
		return *r
	case *Context:
		return *r
	case *PatchResult:
		return *r
	}
	return result
}

// FitEvent returns the events that carry e in frames that are not too large:
// long text and output become several events, anything else is cut with a
// marker. A small event comes back as it is.
func FitEvent(e AgentEvent) []AgentEvent {
	const room = maxEvent - 4096
	if len(e.Text)+len(e.Err)+len(e.ToolArgs) < room/6 {
		return []AgentEvent{e}
	}
	const part = room / 4
	e.Err = cutEnd(e.Err, part)
	if encodedLen(e.ToolArgs) > part {
		// Still JSON: a string of the beginning.
		b, _ := json.Marshal(cutEnd(e.ToolArgs, part/4))
		e.ToolArgs = string(b)
	}
	e.Tool, e.ToolID, e.StopReason = cutEnd(e.Tool, 512), cutEnd(e.ToolID, 512), cutEnd(e.StopReason, 512)
	if e.Kind != EventText && e.Kind != EventOutput && e.Kind != EventUser {
		e.Text = cutEnd(e.Text, part)
		return []AgentEvent{e}
	}
	if e.Text == "" {
		return []AgentEvent{e}
	}
	var events []AgentEvent
	for _, text := range split(e.Text, part) {
		next := e
		next.Text = text
		events = append(events, next)
	}
	return events
}

// FitProviderEvent is FitEvent for the events of a model's stream, within
// MaxProviderEvent. A tool call that is too large ends the stream with an
// error: half of it must not run.
func FitProviderEvent(e ProviderEvent) []ProviderEvent {
	const room = MaxProviderEvent - 4096
	if len(e.Text)+len(e.Err)+len(e.ToolArgs) < room/6 {
		return []ProviderEvent{e}
	}
	if encodedLen(e.ToolArgs)+encodedLen(e.ToolID)+encodedLen(e.ToolName) > room {
		return []ProviderEvent{{StreamID: e.StreamID, Type: ProviderError, Err: "provider event too large"}}
	}
	e.Err = cutEnd(e.Err, maxErrorMessage)
	if e.Type != ProviderText || e.Text == "" {
		return []ProviderEvent{e}
	}
	var events []ProviderEvent
	for _, text := range split(e.Text, room) {
		next := e
		next.Text = text
		events = append(events, next)
	}
	return events
}

// TrimHistory keeps the newest events that fit in limit bytes encoded.
func TrimHistory(history []AgentEvent, limit int) []AgentEvent {
	used := 2
	for i, e := range slices.Backward(history) {
		b, err := json.Marshal(e)
		if err != nil || used+len(b)+1 > limit {
			return history[i+1:]
		}
		used += len(b) + 1
	}
	return history
}

// cutList keeps the first entries that fit and says how many are missing.
func cutList(list []string, limit int) []string {
	used := 0
	for i, s := range list {
		if used += encodedLen(s) + 3; used > limit-64 {
			return append(slices.Clone(list[:i]), fmt.Sprintf("… %d more", len(list)-i))
		}
	}
	return list
}

// cutTools makes a list of tools fit: descriptions are cut first, then the
// largest schemas give way to one that allows any object, and only then tools
// are left out from the end.
func cutTools(tools []MCPTool, limit int) []MCPTool {
	tools = slices.Clone(tools)
	size := 0
	for i := range tools {
		tools[i].Description = cutEnd(tools[i].Description, 1024)
		size += toolSize(tools[i])
	}
	bySize := make([]int, len(tools))
	for i := range bySize {
		bySize[i] = i
	}
	slices.SortStableFunc(bySize, func(a, b int) int {
		return len(tools[b].Parameters) - len(tools[a].Parameters)
	})
	anyObject := json.RawMessage(`{"type":"object"}`)
	for _, i := range bySize {
		if size <= limit || len(tools[i].Parameters) <= len(anyObject) {
			break
		}
		size -= toolSize(tools[i])
		tools[i].Parameters = anyObject
		size += toolSize(tools[i])
	}
	for size > limit && len(tools) > 0 {
		size -= toolSize(tools[len(tools)-1])
		tools = tools[:len(tools)-1]
	}
	return tools
}

func toolSize(t MCPTool) int {
	b, err := json.Marshal(t)
	if err != nil { // a schema that is not JSON; the answer will fail
		return 0
	}
	return len(b) + 1
}

// encodedLen is an upper bound of the bytes of s as a JSON string, without the
// quotes.
func encodedLen(s string) int {
	n := 0
	for _, r := range s {
		n += runeLen(r)
	}
	return n
}

func runeLen(r rune) int {
	switch {
	case r == '\n', r == '\r', r == '\t', r == '"', r == '\\':
		return 2
	case r < 0x20, r == '<', r == '>', r == '&', r == 0x7f, r == '\u2028', r == '\u2029', r == utf8.RuneError:
		return 6
	}
	return utf8.RuneLen(r)
}

// markerRoom is more than the encoded length of a marker.
const markerRoom = 64

// cutEnd cuts s to an encoded length of at most limit, a marker included.
func cutEnd(s string, limit int) string {
	if len(s) <= limit/6 || encodedLen(s) <= limit {
		return s
	}
	at := prefix(s, limit-markerRoom)
	return s[:at] + fmt.Sprintf("… [%d bytes cut]", len(s)-at)
}

// cutMiddle is cutEnd that keeps the beginning and the end.
func cutMiddle(s string, limit int) string {
	if len(s) <= limit/6 || encodedLen(s) <= limit {
		return s
	}
	half := (limit - markerRoom) / 2
	from, to := prefix(s, half), suffix(s, half)
	return s[:from] + fmt.Sprintf("\n… [%d bytes cut] …\n", to-from) + s[to:]
}

// prefix is the length of the longest beginning of s with an encoded length of
// at most limit that ends between runes.
func prefix(s string, limit int) int {
	used := 0
	for i, r := range s {
		if used += runeLen(r); used > limit {
			return i
		}
	}
	return len(s)
}

// suffix is where the longest such end of s begins.
func suffix(s string, limit int) int {
	used, at := 0, len(s)
	for at > 0 {
		r, n := utf8.DecodeLastRuneInString(s[:at])
		if used += runeLen(r); used > limit {
			break
		}
		at -= n
	}
	return at
}

// split cuts s in pieces of an encoded length of at most limit.
func split(s string, limit int) []string {
	var parts []string
	for len(s) > 0 {
		at := max(prefix(s, limit), 1)
		parts, s = append(parts, s[:at]), s[at:]
	}
	return parts
}
