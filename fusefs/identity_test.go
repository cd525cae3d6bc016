package fusefs

import (
	"os"
	"testing"
)

func TestIDMapIsABijection(t *testing.T) {
	for name, c := range map[string]struct {
		pairs []IDPair
		want  map[uint32]uint32 // guest → host
	}{
		"nothing":        {nil, map[uint32]uint32{0: 0, 1000: 1000}},
		"same id":        {[]IDPair{{1000, 1000}}, map[uint32]uint32{1000: 1000, 1001: 1001}},
		"ordinary user":  {[]IDPair{{1000, 1001}}, map[uint32]uint32{1000: 1001, 1001: 1000, 0: 0}},
		"chain":          {[]IDPair{{1, 2}, {2, 3}}, map[uint32]uint32{1: 2, 2: 3, 3: 1}},
		"swap":           {[]IDPair{{1, 2}, {2, 1}}, map[uint32]uint32{1: 2, 2: 1}},
		"first one wins": {[]IDPair{{1, 2}, {1, 3}, {4, 2}}, map[uint32]uint32{1: 2, 4: 4, 3: 3}},
		"no such id":     {nil, map[uint32]uint32{^uint32(0): nobody}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newIDMap(c.pairs)
			for guest, host := range c.want {
				if got := m.host(guest); got != host {
					t.Errorf("host(%d) = %d, want %d", guest, got, host)
				}
				if got := m.guest(host); guest != ^uint32(0) && got != guest {
					t.Errorf("guest(%d) = %d, want %d", host, got, guest)
				}
			}
		})
	}
}

func TestWhoMountsForHimselfIsDev(t *testing.T) {
	me := uint32(os.Getuid())
	if got := newIdentity(Options{}).uid.host(guestUser); got != me {
		t.Errorf("dev appears as %d, not as the mounting user %d", got, me)
	}
	if got := newIdentity(Options{}).uid.guest(me); got != guestUser {
		t.Errorf("the mounting user is %d in the guest", got)
	}
	if got := newIdentity(Options{AllowOther: true}).uid.host(guestUser); me == 0 && got != guestUser {
		t.Errorf("with allow-other root sees dev as %d", got)
	}
}
