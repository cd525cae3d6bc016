package turnrpc

import (
	"fmt"
	"strings"
)

// fitPatch makes a patch fit in limit encoded bytes: files whose changes do not
// fit are left out whole, so that what is left still applies, and the summary
// names them.
func fitPatch(r PatchResult, limit int) PatchResult {
	r.Summary = cutEnd(r.Summary, limit/4)
	room := limit - encodedLen(r.Summary) - 4096 // for the note
	var kept strings.Builder
	var left []string
	bytes := 0
	for _, file := range patchFiles(r.Patch) {
		if n := encodedLen(file); n <= room {
			room -= n
			kept.WriteString(file)
			continue
		}
		bytes += len(file)
		line, _, _ := strings.Cut(file, "\n")
		left = append(left, "  "+cutEnd(strings.TrimPrefix(line, patchHeader), 256))
	}
	r.Patch = kept.String()
	if n := len(left); n > 0 {
		const shown = 8
		r.Summary += fmt.Sprintf("\n… [left out of the patch, which did not fit: %d bytes of %d files]\n%s\n",
			bytes, n, strings.Join(left[:min(n, shown)], "\n"))
		if n > shown {
			r.Summary += fmt.Sprintf("  … and %d more\n", n-shown)
		}
	}
	return r
}

// patchHeader begins the part of a file in a patch. No line of a patch that
// git made begins so otherwise: those of a text have a mark in front, and those
// of binary data hold no space.
const patchHeader = "diff --git "

// patchFiles cuts a patch before each file's header. What comes before the
// first one is a part too.
func patchFiles(patch string) []string {
	var files []string
	for len(patch) > 0 {
		next := strings.Index(patch[1:], "\n"+patchHeader)
		if next < 0 {
			return append(files, patch)
		}
		files, patch = append(files, patch[:next+2]), patch[next+2:]
	}
	return files
}

// WholeFiles cuts a patch whose end is missing after its last whole file.
func WholeFiles(patch string) string {
	files := patchFiles(patch)
	if len(files) == 0 {
		return ""
	}
	return patch[:len(patch)-len(files[len(files)-1])]
}
