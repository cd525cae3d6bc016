package session

import (
	"context"
	"strings"
	"sync"
	"time"

	"msb/agentclient"
)

// fallbackTerms are tried, in this order, when the guest does not know the user's own terminal.
var fallbackTerms = []string{"xterm-256color", "xterm", "vt100", "linux"}

// terminfoDirs is where systems keep their terminal descriptions.
var terminfoDirs = []string{"/usr/share/terminfo", "/lib/terminfo", "/etc/terminfo", "/usr/lib/terminfo"}

// guestTerm is the value of TERM for a guest: the user's own where the guest has a description of it, else the first
// fallback that it has. A guest with none at all (busybox) has programs that ask no description.
func guestTerm(ctx context.Context, fs *agentclient.FS, own string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	candidates := fallbackTerms
	if plainTerm(own) {
		candidates = append([]string{own}, fallbackTerms...)
	}
	known := make([]bool, len(candidates))
	var wg sync.WaitGroup
	for i, name := range candidates {
		wg.Go(func() { known[i] = hasTerminfo(ctx, fs, name) })
	}
	wg.Wait()
	for i, ok := range known {
		if ok {
			return candidates[i]
		}
	}
	for _, prefix := range []string{"xterm", "screen", "tmux", "linux", "vt"} {
		if plainTerm(own) && strings.HasPrefix(own, prefix) {
			return own
		}
	}
	return "xterm"
}

func hasTerminfo(ctx context.Context, fs *agentclient.FS, name string) bool {
	for _, dir := range terminfoDirs {
		if _, err := fs.Stat(ctx, dir+"/"+name[:1]+"/"+name, true); err == nil {
			return true
		}
	}
	return false
}

func plainTerm(name string) bool {
	return name != "" && name != "dumb" && len(name) < 64 && !strings.ContainsAny(name, "/\x00= \n") && name[0] != '.'
}
