package qemu_test

import (
	"testing"

	"msb/vmm/engine"
	"msb/vmm/engine/enginetest"
	"msb/vmm/qemu"
)

func makeEngine() engine.Engine { return qemu.New() }

func TestMain(m *testing.M) { enginetest.Main(m, makeEngine) }

func TestEngine(t *testing.T) {
	kernel, initrd := enginetest.Kernel(t, enginetest.BuildTestInit(t))
	enginetest.Run(t, enginetest.Subject{
		New: makeEngine,
		Spec: engine.Spec{
			Name: "test", Kernel: kernel, Initrd: initrd, CPUs: 1, MemoryMiB: 192, Accel: engine.AccelTCG,
		},
	})
}
