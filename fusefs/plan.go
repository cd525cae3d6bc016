package fusefs

import (
	"context"
	"errors"
	"syscall"

	"msb/agentclient"
	"msb/protocol/agent"
)

// plan is a request in the making. A file whose node the guest has not given in
// this session is looked up by name on the way, in the same round trip.
type plan struct {
	s     *nodeFS
	c     conn
	ops   []agent.NodeOp
	found []found
}

// found is a lookup whose answer has to be the file n.
type found struct {
	index int
	n     *inode
}

// longPlan is from how many lookups on a request of their own is made for them.
const longPlan = agent.MaxNodeOps / 2

func (s *nodeFS) plan() (*plan, error) {
	c, err := s.conn()
	if err != nil {
		return nil, err
	}
	return &plan{s: s, c: c}, nil
}

// add appends an operation and returns what stands for its result.
func (p *plan) add(op agent.NodeOp) agent.NodeRef {
	p.ops = append(p.ops, op)
	return agent.NodeRef(len(p.ops) - 1)
}

// node returns the reference of n for an operation that changes nothing: whether
// it was the right file is known when the answer is there.
func (p *plan) node(ctx context.Context, n *inode) (agent.NodeRef, error) {
	ref, parent, name := p.s.inodes.known(n, p.c.epoch)
	if ref != 0 {
		return ref, nil
	}
	if parent == nil {
		return 0, syscall.ESTALE
	}
	var dir agent.NodeRef
	var err error
	if len(p.ops) < longPlan {
		dir, err = p.node(ctx, parent)
	} else {
		dir, err = p.sure(ctx, parent)
	}
	if err != nil {
		return 0, err
	}
	i := p.add(&agent.NodeLookup{Dir: dir, Name: []byte(name)})
	p.found = append(p.found, found{int(i), n})
	return i, nil
}

// named is node for an open: the file is found by its name again, as the guest
// may have put another one there. The answer is ESTALE then, and the kernel looks
// the name up and tries with what it has found.
func (p *plan) named(ctx context.Context, n *inode) (agent.NodeRef, error) {
	parent, name := p.s.inodes.where(n)
	if parent == nil {
		return p.node(ctx, n)
	}
	dir, err := p.node(ctx, parent)
	if err != nil {
		return 0, err
	}
	i := p.add(&agent.NodeLookup{Dir: dir, Name: []byte(name)})
	p.found = append(p.found, found{int(i), n})
	return i, nil
}

// sure returns the reference of n for an operation that changes something.
func (p *plan) sure(ctx context.Context, n *inode) (agent.NodeRef, error) {
	for {
		var unknown []*inode // n and its parents, up to the first that the guest has given
		for at := n; ; {
			ref, parent, _ := p.s.inodes.known(at, p.c.epoch)
			if ref != 0 {
				if at == n {
					return ref, nil
				}
				break
			}
			if parent == nil || len(unknown) > maxPath {
				return 0, syscall.ESTALE
			}
			unknown = append(unknown, at)
			at = parent
		}
		q := &plan{s: p.s, c: p.c}
		if _, err := q.node(ctx, unknown[max(len(unknown)-longPlan, 0)]); err != nil {
			return 0, err
		}
		if _, err := q.run(ctx, nil); err != nil {
			return 0, err
		}
	}
}

// run sends the request. When a file turns out to be another one, the answer is
// ESTALE, and what the request has brought is given back.
func (p *plan) run(ctx context.Context, as *agent.NodeIdentity) ([]agent.NodeResult, error) {
	if len(p.ops) == 0 {
		return nil, nil
	}
	results, err := p.s.do(ctx, p.c.as(as), p.ops...)
	stale := false
	for i, f := range p.found {
		if f.index >= len(results) {
			var failed *agentclient.NodeError
			if errors.As(err, &failed) && failed.Index == f.index && failed.Errno == syscall.ENOENT {
				err = syscall.ESTALE
				p.s.misled(f.n)
			}
			break
		}
		e := results[f.index].(*agent.NodeEntryResult)
		if checkAttr(&e.Attr) != 0 {
			stale = true
			p.s.farewell.forget(p.c.epoch, agent.NodeCount{Node: e.Node, N: 1})
			continue
		}
		same, extra := p.s.inodes.adopt(p.found[i].n, e, p.c.epoch)
		p.s.farewell.forget(p.c.epoch, extra...)
		if !same {
			stale = true
			p.s.misled(f.n)
		}
	}
	if stale {
		p.giveBack(results)
		return nil, syscall.ESTALE
	}
	return results, err
}

// giveBack returns what results have brought beside the lookups of the plan.
func (p *plan) giveBack(results []agent.NodeResult) {
	mine := map[int]bool{}
	for _, f := range p.found {
		mine[f.index] = true
	}
	for i, r := range results {
		if mine[i] {
			continue
		}
		switch r := r.(type) {
		case *agent.NodeEntryResult:
			p.s.farewell.forget(p.c.epoch, agent.NodeCount{Node: r.Node, N: 1})
		case *agent.NodeHandleResult:
			closed := false
			for _, op := range p.ops[:len(results)] {
				c, ok := op.(*agent.NodeClose)
				closed = closed || ok && c.Handle == agent.NodeRef(i)
			}
			if !closed {
				p.s.farewell.close(r.Handle, p.c.epoch)
			}
		}
	}
}

// misled drops what was listed beside a file that is not where it was.
func (s *nodeFS) misled(n *inode) {
	if parent, _ := s.inodes.where(n); parent != nil {
		parent.names.drop()
	}
}
