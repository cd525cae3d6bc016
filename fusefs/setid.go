package fusefs

import (
	"context"
	"syscall"

	"msb/protocol/agent"
)

// withoutSetID returns the mode that is left when somebody of a group of the
// guest changes the file and set-id bits go, and whether there are any. Other
// groups of his are not known here.
func (n *inode) withoutSetID(gid uint32) (uint32, bool) {
	a, _, _ := n.recall()
	mode := a.Mode & 0o7777
	kept := mode &^ syscall.S_ISUID
	if mode&0o010 != 0 || gid != a.GID {
		kept &^= syscall.S_ISGID
	}
	return kept, kept != mode
}

// dropSetID takes set-id bits away that the guest's own rule for writes, which
// knows no groups, would leave.
func (s *nodeFS) dropSetID(ctx context.Context, n *inode, gid uint32) error {
	mode, drop := n.withoutSetID(gid)
	if !drop {
		return nil
	}
	p, err := s.plan()
	if err != nil {
		return err
	}
	ref, err := p.sure(ctx, n)
	if err != nil {
		return err
	}
	i := p.add(&agent.NodeSetAttr{Target: ref, Valid: agent.NodeSetMode, Mode: mode})
	results, err := p.run(ctx, nil)
	if err != nil {
		return err
	}
	a := results[i].(*agent.NodeAttrResult).Attr
	if errno := n.accept(&a); errno != 0 {
		return errno
	}
	n.learn(&a)
	s.spawn(func() { s.forgetAttr(n.id) })
	return nil
}
