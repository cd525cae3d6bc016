package files

import (
	"os"
	"syscall"
	"testing"
)

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // the tests look at modes
	os.Exit(m.Run())
}
