package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"strings"
)

// moduleInfo is what a kernel module says about itself (its .modinfo section).
type moduleInfo struct {
	depends  []string // modules that must be loaded before
	softPre  []string // modules that should be loaded before, if there are any
	vermagic string   // release and options of the kernel it was built for
}

// parseModule reads the .modinfo section of an uncompressed module.
func parseModule(data []byte) (moduleInfo, error) {
	var info moduleInfo
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return info, fmt.Errorf("not a kernel module: %w", err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return info, errors.New("not a kernel module: it has no .modinfo section")
	}
	text, err := section.Data()
	if err != nil {
		return info, fmt.Errorf("not a kernel module: %w", err)
	}
	for entry := range strings.SplitSeq(string(text), "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		switch key {
		case "depends":
			for name := range strings.SplitSeq(value, ",") {
				if name = moduleName(name); name != "" {
					info.depends = append(info.depends, name)
				}
			}
		case "softdep":
			info.softPre = append(info.softPre, parseSoftPre(value)...)
		case "vermagic":
			info.vermagic = value
		}
	}
	return info, nil
}

// parseSoftPre returns the names after "pre:" of a softdep entry ("pre: a b post: c").
func parseSoftPre(value string) []string {
	var names []string
	pre := false
	for _, word := range strings.Fields(value) {
		switch word {
		case "pre:", "post:":
			pre = word == "pre:"
		default:
			if pre {
				names = append(names, moduleName(word))
			}
		}
	}
	return names
}

// moduleName makes the name of a module of a file name or an entry: no directory, no suffix, dashes as underscores,
// as the kernel itself does.
func moduleName(s string) string {
	if i := strings.LastIndexByte(s, '/'); i >= 0 {
		s = s[i+1:]
	}
	if i := strings.Index(s, ".ko"); i >= 0 {
		s = s[:i]
	}
	return strings.ReplaceAll(strings.TrimSpace(s), "-", "_")
}
