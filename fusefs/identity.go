package fusefs

import "os"

// guestUser is the id of the user and group that people work as in the guest.
const guestUser = 1000

// nobody stands for the one id that the kernel does not accept.
const nobody = 65534

// identity translates the ids of files between guest and host. Its maps are
// bijections, so that an id written comes back as it was.
type identity struct{ uid, gid idMap }

type idMap struct{ toHost, toGuest map[uint32]uint32 }

func newIdentity(o Options) identity {
	users, groups := o.UIDMap, o.GIDMap
	// Whoever mounts for himself is dev in the guest, root too: git refuses a
	// repository that belongs to somebody else. Root that lets others in sees
	// and sets the guest's own ids.
	if uid := os.Getuid(); uid != 0 || !o.AllowOther {
		if users == nil {
			users = []IDPair{{guestUser, uint32(uid)}}
		}
		if groups == nil {
			groups = []IDPair{{guestUser, uint32(os.Getgid())}}
		}
	}
	return identity{newIDMap(users), newIDMap(groups)}
}

// newIDMap pairs the ids; an id that lost its own place to a pair takes the
// place that the pair left free.
func newIDMap(pairs []IDPair) idMap {
	m := idMap{map[uint32]uint32{}, map[uint32]uint32{}}
	for _, p := range pairs {
		if _, taken := m.toHost[p.Guest]; taken {
			continue
		}
		if _, taken := m.toGuest[p.Host]; taken {
			continue
		}
		m.toHost[p.Guest] = p.Host
		m.toGuest[p.Host] = p.Guest
	}
	for _, p := range pairs {
		if _, taken := m.toHost[p.Host]; taken {
			continue
		}
		free := p.Host // follow the chain of pairs back to the id nobody stands for
		for {
			g, taken := m.toGuest[free]
			if !taken {
				break
			}
			free = g
		}
		m.toHost[p.Host] = free
		m.toGuest[free] = p.Host
	}
	return m
}

func (m idMap) host(id uint32) uint32 {
	if h, ok := m.toHost[id]; ok {
		id = h
	}
	if id == ^uint32(0) {
		return nobody
	}
	return id
}

func (m idMap) guest(id uint32) uint32 {
	if g, ok := m.toGuest[id]; ok {
		return g
	}
	return id
}
