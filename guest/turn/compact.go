package turn

import (
	"fmt"
	"strings"

	"msb/protocol/turnrpc"
)

// maxMessages is what a request may have, less a system prompt.
const maxMessages = turnrpc.MaxProviderMessages - 8

// keptWhole is how many messages at the end are not shortened in the first step.
const keptWhole = 12

// compactedPrefix begins the message that stands for what was dropped.
const compactedPrefix = "[Earlier parts of this conversation were left out to save room."

// compact makes messages fit in budget: old tool results are shortened first, then old arguments, then the oldest
// messages dropped, a call with its result, and a note put in their place. Then the newest are shortened, too.
func compact(messages []turnrpc.Message, budget int) []turnrpc.Message {
	if requestSize(messages) <= budget && len(messages) <= maxMessages {
		return messages
	}
	messages = append([]turnrpc.Message{}, messages...)
	// To three quarters, so that the next message does not do it all again, which would also undo a model's caching.
	goal := budget * 3 / 4
	for _, limit := range []int{2048, 256} {
		for i := range max(len(messages)-keptWhole, 0) {
			shorten(&messages[i], limit)
		}
		if requestSize(messages) <= goal && len(messages) <= maxMessages {
			return messages
		}
	}
	messages = drop(messages, goal)
	for limit := 64 << 10; requestSize(messages) > budget && limit >= 512; limit /= 2 {
		for i := range messages {
			shorten(&messages[i], limit)
			messages[i].Content = middleCut(messages[i].Content, limit)
		}
	}
	return messages
}

// shorten cuts a tool's result and arguments.
func shorten(m *turnrpc.Message, limit int) {
	m.ToolResult = middleCut(m.ToolResult, limit)
	if len(m.ToolArgs) > 2*limit {
		m.ToolArgs = fmt.Sprintf(`{"left_out":"arguments of %d bytes"}`, len(m.ToolArgs))
	}
}

// drop drops from the beginning, but never the end of the conversation from the last thing the user said, unless that
// alone is too much; then the oldest calls after it go.
func drop(messages []turnrpc.Message, goal int) []turnrpc.Message {
	last := 0
	for i, m := range messages {
		if m.Role == turnrpc.RoleUser && !strings.HasPrefix(m.Content, compactedPrefix) {
			last = i
		}
	}
	size, count := requestSize(messages), len(messages)
	fits := func() bool { return size <= goal && count <= maxMessages*3/4 }
	gone := make([]bool, len(messages))
	remove := func(from, to int) {
		for i := from; i < to && !fits(); {
			n := 1
			if isCall(messages, i) {
				n = 2
			}
			for range n {
				gone[i] = true
				size -= messageSize(&messages[i])
				count--
				i++
			}
		}
	}
	remove(0, last)
	remove(last+1, len(messages)-2) // the newest pair stays
	note := turnrpc.Message{Role: turnrpc.RoleUser, Content: compactedPrefix + " Look at the files again where you need to.]"}
	var requests []string
	kept := []turnrpc.Message{}
	for i, m := range messages {
		switch {
		case !gone[i]:
			kept = append(kept, m)
		case m.Role == turnrpc.RoleUser && strings.HasPrefix(m.Content, compactedPrefix):
			for line := range strings.Lines(m.Content) {
				if strings.HasPrefix(line, "- ") {
					requests = append(requests, strings.TrimSuffix(line, "\n"))
				}
			}
		case m.Role == turnrpc.RoleUser:
			requests = append(requests, "- "+clip(strings.Join(strings.Fields(m.Content), " "), 200))
		}
	}
	if n := len(requests); n > 0 {
		requests = requests[max(0, n-10):]
		note.Content += "\nThe user asked before, among other things:\n" + strings.Join(requests, "\n")
	}
	return append([]turnrpc.Message{note}, kept...)
}

// isCall tells that message i is a call whose result follows.
func isCall(messages []turnrpc.Message, i int) bool {
	return messages[i].ToolName != "" && i+1 < len(messages) && messages[i+1].Role == turnrpc.RoleTool
}

// whole drops calls without a result and results without a call, which a provider would refuse.
func whole(messages []turnrpc.Message) []turnrpc.Message {
	var kept []turnrpc.Message
	for i := 0; i < len(messages); i++ {
		m := messages[i]
		switch {
		case m.ToolName != "" && m.Role == turnrpc.RoleAssistant:
			if isCall(messages, i) && messages[i+1].ToolID == m.ToolID {
				kept = append(kept, m, messages[i+1])
				i++
			}
		case m.Role == turnrpc.RoleUser, m.Role == turnrpc.RoleAssistant:
			kept = append(kept, m)
		}
	}
	return kept
}

func requestSize(messages []turnrpc.Message) int {
	n := 0
	for i := range messages {
		n += messageSize(&messages[i])
	}
	return n
}

// messageSize is about the encoded size.
func messageSize(m *turnrpc.Message) int {
	return len(m.Content) + len(m.ToolArgs) + len(m.ToolResult) + len(m.ToolID) + len(m.ToolName) + 96
}

// middleCut keeps the beginning and the end of s, about limit bytes.
func middleCut(s string, limit int) string {
	if len(s) <= limit+128 {
		return s
	}
	from, to := limit/2, len(s)-limit/2
	for from > 0 && s[from]&0xc0 == 0x80 {
		from--
	}
	for to < len(s) && s[to]&0xc0 == 0x80 {
		to++
	}
	return s[:from] + fmt.Sprintf("\n… [%d bytes left out] …\n", to-from) + s[to:]
}
