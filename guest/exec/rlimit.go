package exec

import (
	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// resources maps the wire's names to the kernel's numbers. Names that are not here are skipped.
var resources = map[string]int{
	"cpu":        unix.RLIMIT_CPU,
	"fsize":      unix.RLIMIT_FSIZE,
	"data":       unix.RLIMIT_DATA,
	"stack":      unix.RLIMIT_STACK,
	"core":       unix.RLIMIT_CORE,
	"rss":        unix.RLIMIT_RSS,
	"nproc":      unix.RLIMIT_NPROC,
	"nofile":     unix.RLIMIT_NOFILE,
	"memlock":    unix.RLIMIT_MEMLOCK,
	"as":         unix.RLIMIT_AS,
	"locks":      unix.RLIMIT_LOCKS,
	"sigpending": unix.RLIMIT_SIGPENDING,
	"msgqueue":   unix.RLIMIT_MSGQUEUE,
	"nice":       unix.RLIMIT_NICE,
	"rtprio":     unix.RLIMIT_RTPRIO,
	"rttime":     unix.RLIMIT_RTTIME,
}

// limit is one resource limit by number.
type limit struct {
	Resource   int
	Soft, Hard uint64
}

// limits merges lists of limits; a later list wins.
func limits(lists ...[]agent.Rlimit) []limit {
	var merged []limit
	at := make(map[int]int)
	for _, list := range lists {
		for _, l := range list {
			res, ok := resources[l.Resource]
			if !ok {
				continue
			}
			i, seen := at[res]
			if !seen {
				i = len(merged)
				at[res] = i
				merged = append(merged, limit{})
			}
			merged[i] = limit{Resource: res, Soft: l.Soft, Hard: l.Hard}
		}
	}
	return merged
}
