package agent

import (
	"fmt"
	"time"

	"msb/guest/port"
	"msb/protocol/agent"
	"msb/protocol/frame"
)

// admission is the transport credit and the memory of one frame. done gives both back.
type admission struct {
	a     *server
	class class
	id    uint32
	size  int
	owned *buffer
}

func (ad *admission) done() {
	if ad.size > 0 {
		ad.a.credit.release(ad.class, ad.id, ad.size)
	}
	ad.owned.give()
}

// frame serves one frame of the control port. An error ends the agent.
func (a *server) frame(f frame.Frame, owned *buffer) error {
	if f.Flags&frame.FlagBulk != 0 {
		a.record(f, owned, len(f.Raw))
		return nil
	}
	a.admitMu.Lock()
	defer a.admitMu.Unlock()
	ad := &admission{a: a, class: controlClass, id: f.ID, size: len(f.Raw), owned: owned}
	if frame.IsLease(f) {
		a.credit.admit(controlClass, len(f.Raw))
		a.lease(f)
		ad.done()
		return nil
	}
	if f.Flags == frame.FlagShutdown && len(f.Body) == 0 {
		return errShutdown
	}
	env, err := agent.ParseEnvelope(f.Body)
	if err != nil {
		a.admitControl(f, ad)
		a.reject(f.ID, agent.Generation, agent.KindMalformedMessage, "decode message: "+err.Error(), "")
		ad.done()
		return nil
	}
	t, known := env.Type()
	if known && t.IsDataClass() {
		ad.class = dataClass
	}
	within := a.admitControl(f, ad)
	switch {
	case !known:
		a.reject(f.ID, env.V, agent.KindUnsupportedType, fmt.Sprintf("unsupported message type: %s", env.T), env.T)
	case f.Flags != t.Flags():
		a.reject(f.ID, env.V, agent.KindInvalidFlags,
			fmt.Sprintf("invalid flags for %s: got %d, expected %d", t, f.Flags, t.Flags()), env.T)
	case !within && ad.class == dataClass:
		a.overrun(f.ID, env.V)
	case t == agent.Shutdown:
		ad.done()
		return errShutdown
	case f.ID == frame.IDLifecycle && !private(t):
		a.reject(f.ID, env.V, agent.KindInvalidSession, fmt.Sprintf("%s has no place on the private channel", t), "")
	default:
		a.activity.received(t)
		a.message(f, env, t, ad)
		return nil
	}
	ad.done()
	return nil
}

// private tells which messages belong on the private channel.
func private(t agent.Type) bool {
	switch t {
	case agent.WorkloadFreeze, agent.WorkloadThaw, agent.RootDiskPrepare, agent.RootDiskGrow, agent.Error, agent.InputWatch:
		return true
	}
	return false
}

// admitControl counts a frame of the control port. Frames of the private channel do not count.
func (a *server) admitControl(f frame.Frame, ad *admission) (within bool) {
	if f.ID == frame.IDLifecycle {
		ad.size = 0
		return true
	}
	return a.credit.admit(ad.class, ad.size)
}

// overrun answers data for which the host had no credit. What the stream has lost cannot be made good, so it ends; a
// host that only forgot to count for one client does not lose the others.
func (a *server) overrun(id uint32, v uint8) {
	const text = "host exceeded its transport admission credit"
	a.reject(id, v, agent.KindInvalidSession, text, "")
	switch {
	case a.exec.Has(id):
		a.exec.Abort(id)
	case a.files.Has(id):
		a.files.Cancel(id, agent.BulkCancelPayload{Kind: frame.BulkFilesystem, Reason: agent.CancelResourceLimit, Message: text})
	case a.tcp.Has(id):
		a.tcp.Abort(id)
	}
}

// reject answers with core.error, which peers before generation 5 do not know. It is small whatever the host sent, for
// who reads the input must not wait until the host has read the answer.
func (a *server) reject(id uint32, v uint8, kind, message, offending string) {
	if v < agent.ErrorGeneration {
		return
	}
	p := agent.ErrorPayload{Kind: kind, Message: port.Clip(message)}
	if offending != "" {
		offending = port.Clip(offending)
		p.OffendingType = &offending
	}
	_ = a.out.send(id, agent.Error, p)
}

// message serves one well-formed frame. ad.done is called exactly once, here or by whoever takes the data.
func (a *server) message(f frame.Frame, env agent.Envelope, t agent.Type, ad *admission) {
	switch t {
	case agent.ExecStdin, agent.FSData, agent.TCPData:
		a.data(f, env, t, ad)
		return
	case agent.FSRequest:
		a.files.Request(port.Owner(f.ID), f.ID, env.V, env.P, ad.done)
		return
	case agent.NodeRequest:
		a.nodes.Request(port.Owner(f.ID), f.ID, env.V, env.P, ad.done)
		return
	case agent.TCPConnect:
		a.tcp.Connect(port.Owner(f.ID), f.ID, env.V, env.P, ad.done)
		return
	case agent.TCPEOF:
		if decode[agent.Empty](a, f, env) != nil {
			a.tcp.EOF(f.ID, ad.done)
			return
		}
	case agent.Ping:
		if decode[agent.Empty](a, f, env) != nil {
			_ = a.out.send(f.ID, agent.Pong, agent.Empty{})
		}
	case agent.Touch:
		if decode[agent.Empty](a, f, env) != nil {
			_ = a.out.send(f.ID, agent.Touched, agent.TouchedPayload{ActivitySeq: a.activity.touch()})
		}
	case agent.ExecRequest:
		if p := decode[agent.ExecRequestPayload](a, f, env); p != nil {
			a.exec.Request(f.ID, *p)
		}
	case agent.ExecOpen:
		if p := decode[agent.ExecOpenPayload](a, f, env); p != nil {
			a.exec.Open(f.ID, *p)
		}
	case agent.ExecCredit:
		if p := decode[agent.ExecCreditPayload](a, f, env); p != nil {
			a.exec.Credit(f.ID, *p)
		}
	case agent.NodeCancel:
		if decode[agent.NodeCancelPayload](a, f, env) != nil {
			a.nodes.Cancel(f.ID)
		}
	case agent.WatchRequest:
		if p := decode[agent.WatchRequestPayload](a, f, env); p != nil {
			a.watch.Request(f.ID, *p)
		}
	case agent.WatchSeen:
		if p := decode[agent.WatchSeenPayload](a, f, env); p != nil {
			a.watch.Seen(f.ID, p.Seq)
		}
	case agent.WatchCancel:
		if decode[agent.WatchCancelPayload](a, f, env) != nil {
			a.watch.Cancel(f.ID)
		}
	case agent.ExecResize:
		if p := decode[agent.ExecResizePayload](a, f, env); p != nil {
			a.exec.Resize(f.ID, p.Rows, p.Cols)
		}
	case agent.ExecSignal:
		if p := decode[agent.ExecSignalPayload](a, f, env); p != nil {
			a.exec.Signal(f.ID, p.Signal)
		}
	case agent.TCPClose:
		if decode[agent.Empty](a, f, env) != nil {
			a.tcp.Abort(f.ID)
		}
	case agent.BulkCredit:
		if p := decode[agent.BulkCreditPayload](a, f, env); p != nil {
			a.bulkService(f.ID, p.Kind).Credit(f.ID, *p)
		}
	case agent.BulkFinish:
		if p := decode[agent.BulkFinishPayload](a, f, env); p != nil {
			a.bulkService(f.ID, p.Kind).Finish(f.ID, *p)
		}
	case agent.BulkCancel:
		if p := decode[agent.BulkCancelPayload](a, f, env); p != nil {
			a.bulkService(f.ID, p.Kind).Cancel(f.ID, *p)
			a.nodes.Cancel(f.ID)
		}
	case agent.ClientDisconnected:
		if p := decode[agent.ClientDisconnectedPayload](a, f, env); p != nil {
			a.disconnected(p)
		}
	case agent.ClockSync:
		if p := decode[agent.ClockSyncPayload](a, f, env); p != nil {
			a.syncClock(p.UnixTimeNanos)
		}
	case agent.WorkloadFreeze:
		if p := decode[agent.FreezePayload](a, f, env); p != nil {
			a.freezer.freeze(f.ID, env.V, p)
		}
	case agent.WorkloadThaw:
		if p := decode[agent.ThawPayload](a, f, env); p != nil {
			a.freezer.thaw(f.ID, env.V, p)
		}
	case agent.InputWatch:
		if f.ID != frame.IDLifecycle {
			a.reject(f.ID, env.V, agent.KindInvalidSession, fmt.Sprintf("%s has a channel of its own", t), "")
		} else if decode[agent.InputWatchPayload](a, f, env) != nil {
			a.credit.watch()
		}
	case agent.RootDiskPrepare, agent.RootDiskGrow:
		if p := decode[agent.RootDiskPayload](a, f, env); p != nil {
			a.rootDisk(f.ID, env.V, t, p.SizeBytes)
		}
	case agent.BulkAccepted:
		a.reject(f.ID, env.V, agent.KindUnsupportedType, fmt.Sprintf("unsupported message type: %s", t), env.T)
	default:
		// Known, and the host has no business to send it: ignored, as published agents do.
	}
	ad.done()
}

// decode opens a payload. nil means that it is not one, and the sender has been told.
func decode[P any](a *server, f frame.Frame, env agent.Envelope) *P {
	p := new(P)
	if err := agent.DecodePayload(env.P, p); err != nil {
		a.reject(f.ID, env.V, agent.KindInvalidPayload, fmt.Sprintf("decode payload for %s: %v", env.T, err), env.T)
		return nil
	}
	return p
}

// data hands bytes to a stream, which gives them back when it is done with them.
func (a *server) data(f frame.Frame, env agent.Envelope, t agent.Type, ad *admission) {
	d := decode[agent.Data](a, f, env)
	if d == nil {
		ad.done()
		return
	}
	in := port.Input{ID: f.ID, Data: d.Data, Release: ad.done}
	if ad.owned == nil { // the bytes are the reader's
		ad.owned = takeBuffer(len(d.Data))
		in.Data = ad.owned.b[:copy(ad.owned.b, d.Data)]
	}
	switch t {
	case agent.ExecStdin:
		a.exec.Stdin(in)
	case agent.FSData:
		a.files.Data(in)
	case agent.TCPData:
		a.tcp.Data(in)
	}
}

// recordOf serves a record of the bulk port, which says whose it is: one of a client that is gone is dropped.
func (a *server) recordOf(incarnation frame.Incarnation, f frame.Frame, owned *buffer, size int) {
	a.admitMu.Lock()
	defer a.admitMu.Unlock()
	if a.leases.incarnation(port.Owner(f.ID)) == incarnation {
		a.recordLocked(f, owned, size)
		return
	}
	a.credit.admit(dataClass, size)
	(&admission{a: a, class: dataClass, id: f.ID, size: size, owned: owned}).done()
	a.freezer.arrived()
}

// record serves one raw record. size is what it counts for, its prefix on the bulk port included.
func (a *server) record(f frame.Frame, owned *buffer, size int) {
	a.admitMu.Lock()
	defer a.admitMu.Unlock()
	a.recordLocked(f, owned, size)
}

func (a *server) recordLocked(f frame.Frame, owned *buffer, size int) {
	ad := &admission{a: a, class: dataClass, id: f.ID, size: size, owned: owned}
	within := a.credit.admit(dataClass, size)
	rec, err := frame.ParseBulk(f)
	switch {
	case err != nil:
		a.reject(f.ID, agent.Generation, agent.KindMalformedMessage, "decode record: "+err.Error(), "")
		ad.done()
	case rec.Flow != frame.FlowHostToGuest:
		a.reject(f.ID, agent.Generation, agent.KindMalformedMessage, "decode record: the flow is the guest's", "")
		ad.done()
	case !within:
		a.overrun(f.ID, agent.Generation)
		ad.done()
	default:
		a.activity.receivedBulk(rec.Kind, len(rec.Payload))
		if ad.owned == nil {
			ad.owned = takeBuffer(len(rec.Payload))
			rec.Payload = ad.owned.b[:copy(ad.owned.b, rec.Payload)]
		}
		a.bulkService(rec.ID, rec.Kind).Bulk(rec, ad.done)
	}
	a.freezer.arrived()
}

// bulkService is who has the stream, or who would have it.
func (a *server) bulkService(id uint32, kind uint8) bulkService {
	switch {
	case a.files.Has(id):
		return a.files
	case a.tcp.Has(id):
		return a.tcp
	case kind == frame.BulkTCP:
		return a.tcp
	}
	return a.files
}

// maxClockError is how far off the wall clock may be before it is stepped.
const maxClockError = 100 * time.Millisecond

func (a *server) syncClock(unixNanos uint64) {
	if unixNanos > 1<<63-1 || a.machine.SetClock == nil {
		return
	}
	host := time.Unix(0, int64(unixNanos))
	if off := time.Until(host); off.Abs() <= maxClockError {
		return
	}
	if err := a.machine.SetClock(host); err != nil {
		a.machine.Logf("set the clock to %s: %v", host.UTC().Format(time.RFC3339), err)
	}
}
