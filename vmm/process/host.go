package process

import (
	"bufio"
	"os"
	"strings"
)

// hasFileSystem looks a file system up in /proc/filesystems.
func hasFileSystem(name string) (bool, error) {
	f, err := os.Open("/proc/filesystems")
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if words := strings.Fields(lines.Text()); len(words) > 0 && words[len(words)-1] == name {
			return true, nil
		}
	}
	return false, lines.Err()
}

// unifiedCgroups is where a cgroup2 file system is mounted on this host, or "". It may be anywhere, beside version 1.
func unifiedCgroups() string {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		if !ok || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		// "ID PARENT MAJ:MIN ROOT POINT OPTIONS…"; only a mount of the whole tree is of use.
		if fields := strings.Fields(before); len(fields) >= 6 && fields[3] == "/" && !strings.Contains(fields[4], `\`) {
			return fields[4]
		}
	}
	return ""
}

func containsLine(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.TrimSuffix(l, "\n") == line {
			return true
		}
	}
	return false
}
