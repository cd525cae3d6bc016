package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// heartbeatInterval is how often the heartbeat file is written.
const heartbeatInterval = time.Second

// activity counts what the host's idle timeout goes by.
type activity struct {
	fromHost atomic.Uint64
	toHost   atomic.Uint64
	fsBytes  atomic.Uint64
	tcpBytes atomic.Uint64
	initTime uint64

	seq     atomic.Uint64
	changed atomic.Int64 // when seq last advanced, ns since 1970
}

func (c *activity) active() uint64 {
	c.changed.Store(time.Now().UnixNano())
	return c.seq.Add(1)
}

// touch is the client's explicit sign of life.
func (c *activity) touch() uint64 { return c.active() }

// refreshes tells whether a message counts as activity. What keeps a connection or the machine itself going does not.
func refreshes(t agent.Type) bool {
	switch t {
	case agent.Ping, agent.Pong, agent.Touch, agent.Touched, agent.ClockSync, agent.Error,
		agent.WorkloadFreeze, agent.WorkloadFrozen, agent.WorkloadThaw, agent.WorkloadThawed, agent.TransportCredit,
		agent.ClientDisconnected, agent.WatchEvents, agent.WatchSeen:
		return false
	}
	return true
}

func (c *activity) received(t agent.Type) {
	if refreshes(t) {
		c.active()
	}
}

func (c *activity) receivedBulk(kind uint8, n int) {
	c.count(kind, n)
	c.active()
}

func (c *activity) sent(t agent.Type, payload any) {
	c.toHost.Add(1)
	if !refreshes(t) {
		return
	}
	if d, ok := payload.(agent.Data); ok {
		switch t {
		case agent.FSData:
			c.fsBytes.Add(uint64(len(d.Data)))
		case agent.TCPData:
			c.tcpBytes.Add(uint64(len(d.Data)))
		}
	}
	c.active()
}

func (c *activity) sentBulk(kind uint8, n int) {
	c.toHost.Add(1)
	c.count(kind, n)
	c.active()
}

func (c *activity) count(kind uint8, n int) {
	if kind == frame.BulkTCP {
		c.tcpBytes.Add(uint64(n))
		return
	}
	c.fsBytes.Add(uint64(n))
}

// heartbeat is the file's content.
type heartbeat struct {
	HeartbeatSeq  uint64   `json:"heartbeat_seq"`
	ActivitySeq   uint64   `json:"activity_seq"`
	Timestamp     string   `json:"timestamp"`
	LastActivity  string   `json:"last_activity"`
	ExecSessions  int      `json:"active_exec_sessions"`
	FSStreams     int      `json:"active_fs_streams"`
	TCPStreams    int      `json:"active_tcp_streams"`
	ActivityCount counters `json:"activity_counters"`
}

type counters struct {
	HostMessages  uint64 `json:"host_messages"`
	GuestMessages uint64 `json:"guest_messages"`
	ExecOutput    uint64 `json:"exec_output_bytes"`
	FSBytes       uint64 `json:"fs_bytes"`
	TCPBytes      uint64 `json:"tcp_bytes"`
}

// counter is a service that can tell how many streams it has.
type counter interface{ Active() int }

func activeStreams(service any) int {
	if c, ok := service.(counter); ok {
		return c.Active()
	}
	return 0
}

// startHeartbeat writes the heartbeat file each second; stop ends that and waits.
func (a *server) startHeartbeat() (stop func()) {
	a.activity.changed.Store(time.Now().UnixNano())
	if a.machine.Heartbeat == "" {
		return func() {}
	}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(heartbeatInterval)
		defer tick.Stop()
		failed := false
		for seq := uint64(1); ; seq++ {
			if err := a.writeHeartbeat(seq); err != nil && !failed {
				failed = true // once is enough: the disk may be full for hours
				a.machine.Logf("heartbeat: %v", err)
			}
			select {
			case <-tick.C:
			case <-quit:
				return
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

func (a *server) writeHeartbeat(seq uint64) error {
	c := &a.activity
	b, err := json.Marshal(heartbeat{
		HeartbeatSeq: seq,
		ActivitySeq:  c.seq.Load(),
		Timestamp:    time.Now().UTC().Format(time.RFC3339Nano),
		LastActivity: time.Unix(0, c.changed.Load()).UTC().Format(time.RFC3339Nano),
		ExecSessions: a.exec.Active(),
		FSStreams:    activeStreams(a.files),
		TCPStreams:   activeStreams(a.tcp),
		ActivityCount: counters{
			HostMessages:  c.fromHost.Load(),
			GuestMessages: c.toHost.Load(),
			ExecOutput:    a.exec.OutputBytes(),
			FSBytes:       c.fsBytes.Load(),
			TCPBytes:      c.tcpBytes.Load(),
		},
	})
	if err != nil {
		return err
	}
	a.actors.Enter(c)
	defer a.actors.Leave(c)
	path := filepath.Join(a.machine.Heartbeat, "heartbeat.json")
	if err := os.WriteFile(path+".tmp", b, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
