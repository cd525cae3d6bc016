package agent

import (
	"fmt"

	"msb/protocol/record"
)

// WatchRequestPayload asks for the changes of the file system that Node, a node
// of msb.fs of the same connection, is on. msb.fs.watch.started answers, then
// msb.fs.watch.events come until msb.fs.watch.ended.
type WatchRequestPayload struct {
	Node uint64 `cbor:"node"`
}

// WatchStartedPayload says that every change from here on will be told, of
// files whose attributes say Dev.
type WatchStartedPayload struct {
	Dev uint64 `cbor:"dev"`
}

// WatchSeenPayload says that the host has acted on all events up to and with
// those of Seq. The guest sends at most WatchWindow messages ahead of it.
type WatchSeenPayload struct {
	Seq uint64 `cbor:"seq"`
}

// WatchCancelPayload ends a watch; msb.fs.watch.ended comes all the same.
type WatchCancelPayload = Empty

// WatchEndedPayload says why a watch has ended, or was not begun, by a number of
// Linux: ECANCELED when the host wished it.
type WatchEndedPayload struct {
	Errno   uint32 `cbor:"errno"`
	Message string `cbor:"message"`
}

const (
	// WatchWindow is how many messages of events the guest sends that the host
	// has not seen.
	WatchWindow = 8
	// MaxWatchEvents bounds the events of one message.
	MaxWatchEvents = 512
	// WatchPulse is how often, in ms, a message of events comes at least, if need
	// be without any.
	WatchPulse = 1000
)

// What has happened to a file or a name, bits of WatchEvent.Change. Several may
// be set when much happened at once; their order is not told then.
const (
	WatchData      uint32 = 1 << iota // content, or size
	WatchAttr                         // mode, owner, times, links, extended attributes
	WatchCreated                      // the name is there now
	WatchDeleted                      // the name is gone
	WatchMovedAway                    // the name is gone: the file has another one
	WatchMovedHere                    // the name is there now, of a file that had another one
)

// WatchEvent is a change. Dir is the inode number of the directory, Name the name
// in it that the file was reached by, empty when that is not known or Dir itself
// has changed. Node is the inode number of the file, 0 when it is not known.
type WatchEvent struct {
	Dir    uint64
	Name   []byte
	Node   uint64
	Change uint32
}

func (e *WatchEvent) fields(w *walker) {
	w.u64("dir", &e.Dir)
	w.bytes("name", &e.Name)
	w.u64("node", &e.Node)
	w.u32("change", &e.Change)
}

// WatchEventsPayload tells changes. Seq counts the messages of a watch from 1.
// With Lost there were more changes than the guest could keep: everything on the
// file system may have changed.
type WatchEventsPayload struct {
	Seq    uint64
	Lost   bool
	Events []WatchEvent
}

// MarshalCBOR encodes {seq: n, lost: bool, events: [[field, …], …]}.
func (p WatchEventsPayload) MarshalCBOR() ([]byte, error) {
	b := make([]byte, 0, 64+40*len(p.Events))
	b = append(b, 0xa3, 0x63, 's', 'e', 'q')
	b = record.AppendHead(b, record.Uint, p.Seq)
	b = append(b, 0x64, 'l', 'o', 's', 't', 0xf4)
	if p.Lost {
		b[len(b)-1] = 0xf5
	}
	b = append(b, 0x66, 'e', 'v', 'e', 'n', 't', 's')
	b = record.AppendHead(b, record.Array, uint64(len(p.Events)))
	for i := range p.Events {
		b = appendFields(b, &p.Events[i], nil)
	}
	return b, nil
}

// decodePayload reads all three fields. Names share p.
func (p *WatchEventsPayload) decodePayload(b []byte) error {
	*p = WatchEventsPayload{}
	seen := 0
	err := walkMap(b, func(key string, c *record.Cursor) error {
		switch key {
		case "seq":
			seen |= 1
			m, n, err := c.Head()
			if err == nil && m != record.Uint {
				err = record.Malformed("field %q is not a u64", key)
			}
			p.Seq = n
			return err
		case "lost":
			seen |= 2
			m, n, err := c.Head()
			if err == nil && (m != record.Simple || n != 20 && n != 21) {
				err = record.Malformed("field %q is not a bool", key)
			}
			p.Lost = n == 21
			return err
		case "events":
			seen |= 4
			return p.decodeEvents(c)
		}
		return c.Skip(1)
	})
	if err == nil && seen != 7 {
		err = record.Malformed("seq, lost or events are missing")
	}
	return err
}

func (p *WatchEventsPayload) decodeEvents(c *record.Cursor) error {
	m, n, err := c.Head()
	switch {
	case err != nil:
		return err
	case m != record.Array || n == record.Indefinite || n > MaxWatchEvents:
		return record.Malformed("events are not a list of at most %d", MaxWatchEvents)
	}
	p.Events = make([]WatchEvent, n)
	for i := range p.Events {
		if err := decodeFields(c, &p.Events[i]); err != nil {
			return fmt.Errorf("event: %w", err)
		}
	}
	return nil
}
