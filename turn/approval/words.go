package approval

import "strings"

// Words parses a command that is nothing but plain words: a program and its
// arguments, between spaces and tabs. Every POSIX shell runs such a text as
// exactly these words, whatever the spacing. ok is false for all else —
// quotes, expansions, operators, redirections, assignments, reserved words,
// comments, line breaks, anything not ASCII — and then only the same bytes are
// the same command.
func Words(command string) (words []string, ok bool) {
	for i := range len(command) {
		if c := command[i]; !plain(c) && c != ' ' && c != '\t' {
			return nil, false
		}
	}
	words = strings.FieldsFunc(command, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(words) == 0 || strings.Contains(words[0], "=") || reserved[words[0]] {
		return nil, false
	}
	return words, true
}

// plain bytes mean nothing to a shell wherever they stand in a word. A '='
// does so in the first word only.
func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("_-./,:=@%+", c) >= 0
}

// reserved words change what follows when they are the first word. Those after
// "until" are of bash, ksh or zsh.
var reserved = map[string]bool{
	"if": true, "then": true, "else": true, "elif": true, "fi": true, "do": true, "done": true,
	"case": true, "esac": true, "while": true, "for": true, "in": true, "until": true,
	"function": true, "select": true, "time": true, "coproc": true, "repeat": true,
	"foreach": true, "end": true, "nocorrect": true, "noglob": true, "always": true,
}
