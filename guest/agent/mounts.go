package agent

import (
	"bufio"
	"os"
	"strings"
)

// mountPoint finds where the external mount with this tag is. Its tag is the source in the mount table.
func mountPoint(tag string) (string, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		source, rest, _ := strings.Cut(lines.Text(), " ")
		if path, _, ok := strings.Cut(rest, " "); ok && source == tag {
			return unescapeMount(path), nil
		}
	}
	return "", errNotMounted
}

// unescapeMount undoes the octal escapes of the mount table.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
