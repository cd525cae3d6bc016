package port

import "strings"

// maxText bounds the texts that repeat what the host sent, in bytes.
const maxText = 1024

// Clip shortens a text that may repeat what the host sent, so that an answer is never larger than what its sender
// queues without waiting.
func Clip(text string) string {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}
