package agent

import (
	"errors"
	"io"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

const (
	// termGrace is how long commands get between SIGTERM and SIGKILL. The host waits 2 s for the whole shutdown.
	termGrace = 400 * time.Millisecond
	// closeGrace bounds the wait for services and for the last output.
	closeGrace = 500 * time.Millisecond
)

// end stops everything: commands first with SIGTERM, then for good, then the streams, then the ports.
func (a *server) end() {
	a.closing.Store(true)
	if a.exec != nil {
		a.freezer.end()
		a.exec.Terminate()
		waitFor(termGrace, func() bool { return a.exec.Active() == 0 })
	}
	a.credit.stop()
	a.out.close() // what is queued still leaves
	if a.bulkOut != nil {
		a.bulkOut.close()
	}
	bounded(closeGrace, func() {
		a.out.wait()
		if a.bulkOut != nil {
			a.bulkOut.wait()
		}
	})
	// From here on senders fail, so services cannot wait for a host that does not read.
	a.ports.Control.Close()
	if a.bulkPort != nil {
		a.bulkPort.Close()
	}
	if a.exec != nil {
		bounded(closeGrace, func() {
			a.exec.Close()
			a.watch.Close()
			a.nodes.Close()
			a.files.Close()
			a.tcp.Close()
			a.helpers.Wait()
			a.bulkReader.Wait()
			a.out.wait()
		})
	}
	if a.workload != nil {
		a.workload.Close()
	}
}

// waitFor waits until cond holds, at most d.
func waitFor(d time.Duration, cond func() bool) {
	for end := time.Now().Add(d); !cond() && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
}

// bounded runs f and goes on after d whether it is done or not.
func bounded(d time.Duration, f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(d):
	}
}

// readBulk serves the bulk port.
func (a *server) readBulk() {
	in := newInput(a.bulkPort)
	for {
		var incarnation frame.Incarnation
		err := in.full(incarnation[:])
		if err == nil {
			err = a.bulkFrame(in, incarnation)
		}
		if err != nil {
			if !a.closing.Load() {
				// Half a transport is none: the control port's loop ends, and with it the agent.
				a.machine.Logf("%v", portError(agent.BulkPortName, err))
				a.ports.Control.Close()
			}
			return
		}
	}
}

var errNotRecord = errors.New("a frame on the bulk port is not a record")

func (a *server) bulkFrame(in *input, incarnation frame.Incarnation) error {
	f, owned, err := in.next()
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	a.activity.fromHost.Add(1)
	size := len(f.Raw) + frame.IncarnationSize
	if f.Flags != frame.FlagBulk {
		owned.give()
		return errNotRecord
	}
	a.recordOf(incarnation, f, owned, size)
	return nil
}
