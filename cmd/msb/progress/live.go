package progress

// Live says whether a running step can be drawn again: on a terminal, and not quiet.
func (s *Steps) Live() bool { return s.live && !s.quiet }
