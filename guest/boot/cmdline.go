package boot

import (
	"os"
	"strings"

	"msb/protocol/agent"
)

// unpackWord asks for the mode that unpacks an image.
const unpackWord = "msb.mode=unpack"

// cmdline is the words of the kernel command line.
type cmdline map[string]bool

func readCmdline() cmdline {
	words := make(cmdline)
	b, _ := os.ReadFile("/proc/cmdline")
	for w := range strings.FieldsSeq(string(b)) {
		words[w] = true
	}
	return words
}

func (c cmdline) unpack() bool   { return c[unpackWord] }
func (c cmdline) dualPort() bool { return c[agent.DualPortCmdline] }
