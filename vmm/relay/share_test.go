package relay

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/protocol/frame"
)

// consumer is one client's data in the simulated guest: read at a rate, or never.
type consumer struct {
	lane  *lane
	id    uint32
	size  int   // bytes of its packets
	left  int   // packets not pushed yet
	rate  int   // bytes a millisecond; 0 = never reads
	queue []int // sizes of what the guest holds of it
	spare int   // bytes it could have read already
	done  int   // packets read
	want  int
}

// simulate runs the scheduler against a guest in virtual time and returns how long the readers took. It
// fails the test when the credit is exceeded or a reader does not finish. exact: the guest says whose data it has
// consumed.
func simulate(t *testing.T, exact bool, cs []*consumer, latency time.Duration) time.Duration {
	t.Helper()
	s := newScheduler(newGate(true), exact, false)
	for i, c := range cs {
		c.lane = s.addLane(i)
		c.lane.open = true
		start, _ := frame.Range(i)
		c.id, c.want = start, c.left
	}
	type delivery struct {
		at     time.Time
		limit  agent.Position
		report agent.InputConsumedPayload
	}
	var (
		limit    = agent.InitialGrants
		freed    agent.Position // consumed and not reported
		held     agent.Position
		credits  []delivery
		report   agent.InputConsumedPayload
		start    = time.Unix(0, 0)
		lastFree = start
	)
	for now := start; ; now = now.Add(time.Millisecond) {
		if now.Sub(start) > 10*time.Minute {
			for i, c := range cs {
				t.Logf("client %d: rate %d, %d of %d packets of %d read, account %+v turns %+v", i, c.rate, c.done, c.want, c.size, s.unread[i], c.lane.turns)
			}
			t.Fatalf("no end in sight; the guest holds %+v", held)
		}
		for len(credits) > 0 && !now.Before(credits[0].at) {
			if exact {
				s.consumed(credits[0].report)
			}
			s.credit(credits[0].limit, now)
			credits = credits[1:]
		}
		// Clients keep their lanes full.
		for _, c := range cs {
			for c.left > 0 && (c.lane.stream.len() == 0 || c.lane.stream.bytes+c.size <= laneBytes && c.lane.stream.len() < laneFrames) {
				p := newPacket(make([]byte, frame.Overhead))
				p.class, p.size = data, c.size
				p.mem = append(p.mem[:headroom], 0, 0, 0, 0, byte(c.id>>24), byte(c.id>>16), byte(c.id>>8), byte(c.id), 0)
				s.mu.Lock()
				c.lane.stream.push(p)
				c.lane.behind[c.id]++
				s.mu.Unlock()
				c.left--
			}
		}
		// What the host sends this millisecond: as much as a port takes.
		for budget := 200 << 10; budget > 0; {
			s.mu.Lock()
			packets, _ := s.pick(controlPort, nil, now)
			s.mu.Unlock()
			if len(packets) == 0 {
				break
			}
			for _, p := range packets {
				c := cs[p.id()/frame.RangeStep]
				c.queue = append(c.queue, p.size)
				held.BulkBytes += uint64(p.size)
				held.BulkFrames++
				budget -= p.size
			}
		}
		if held.BulkBytes > agent.InitialGrants.BulkBytes || held.BulkFrames > agent.InitialGrants.BulkFrames {
			t.Fatalf("the guest holds %+v", held)
		}
		finished := true
		for _, c := range cs {
			for c.spare += c.rate; len(c.queue) > 0 && c.spare >= c.queue[0]; c.queue = c.queue[1:] {
				n := uint64(c.queue[0])
				c.spare -= c.queue[0]
				c.done++
				held.BulkBytes -= n
				held.BulkFrames--
				freed.BulkBytes += n
				freed.BulkFrames++
				report.Operations = append(report.Operations, agent.ConsumedInput{ID: c.id, Bytes: n, Frames: 1})
				lastFree = now
			}
			if len(c.queue) == 0 {
				c.spare = 0
			}
			finished = finished && (c.rate == 0 || c.done == c.want)
		}
		if freed.BulkBytes >= 64<<10 || freed.BulkFrames >= 16 || freed.BulkFrames > 0 && now.Sub(lastFree) > 5*time.Millisecond {
			limit.BulkBytes += freed.BulkBytes
			limit.BulkFrames += freed.BulkFrames
			freed = agent.Position{}
			credits = append(credits, delivery{now.Add(latency), limit, report})
			report = agent.InputConsumedPayload{}
		}
		if finished {
			return now.Sub(start)
		}
	}
}

func TestReadersFinishWhateverOthersDo(t *testing.T) {
	const fast = 100 << 10 // bytes a millisecond, about what an emulated port does
	for _, run := range []struct {
		exact   bool
		latency time.Duration
	}{{false, 0}, {false, 5 * time.Millisecond}, {false, 200 * time.Millisecond}, {true, 0}, {true, 200 * time.Millisecond}} {
		for _, tt := range []struct {
			name    string
			readers int
			slow    int // they read 20 KB/s
			stuck   int
			size    int
		}{
			{"one reader", 1, 0, 0, 64 << 10},
			{"one reader, one stuck", 1, 0, 1, 64 << 10},
			{"one reader, ten stuck", 1, 0, 10, 64 << 10},
			{"one reader, fifty stuck", 1, 0, 50, 16 << 10},
			{"one slow, one stuck", 1, 1, 1, 4 << 10},
			{"two readers, two slow, two stuck", 2, 2, 2, 16 << 10},
			{"ten readers", 10, 0, 0, 64 << 10},
			{"records of 3 MiB, two stuck", 2, 0, 2, 3 << 20},
			{"small packets", 2, 0, 2, 100},
		} {
			t.Run(fmt.Sprintf("%s, latency %s, exact %v", tt.name, run.latency, run.exact), func(t *testing.T) {
				var cs []*consumer
				for range tt.stuck {
					cs = append(cs, &consumer{size: tt.size, left: 5000})
				}
				total := 0
				for range tt.readers {
					n := max(8<<20/tt.size, 3)
					if tt.size < 1000 {
						n = 2000
					}
					total += n * tt.size
					cs = append(cs, &consumer{size: tt.size, left: n, rate: fast})
				}
				for range tt.slow {
					cs = append(cs, &consumer{size: tt.size, left: 400 << 10 / tt.size, rate: 20})
				}
				took := simulate(t, run.exact, cs, run.latency)
				t.Logf("%s for %d KiB", took, total>>10)
			})
		}
	}
}

// Any mix of readers, slow readers and clients that are never read ends, within the credit.
func TestReadersFinishInRandomMixes(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var cs []*consumer
		for range 1 + r.IntN(12) {
			c := &consumer{size: 64 << r.IntN(16), left: 1 + r.IntN(200)}
			switch r.IntN(4) {
			case 0:
			case 1:
				c.rate = 20 + r.IntN(500)
				c.left = max(1, min(c.left, 200<<10/c.size))
			default:
				c.rate = 100 << 10
			}
			cs = append(cs, c)
		}
		latency := time.Duration(r.IntN(150)) * time.Millisecond
		took := simulate(t, seed%2 == 0, cs, latency)
		if testing.Verbose() {
			t.Logf("seed %d: %d clients, latency %s: %s", seed, len(cs), latency, took)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
