//go:build !linux

package blocking

import "errors"

func forceBuffer(int, int) error { return errors.ErrUnsupported }
