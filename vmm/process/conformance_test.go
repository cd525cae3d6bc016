package process_test

import (
	"testing"

	"msb/vmm/engine"
	"msb/vmm/engine/enginetest"
	"msb/vmm/process"
)

func makeEngine() engine.Engine { return process.New() }

func TestMain(m *testing.M) { enginetest.Main(m, makeEngine) }

func TestEngine(t *testing.T) {
	if err := makeEngine().Check(t.Context()); err != nil {
		t.Skipf("skipped, since the process engine cannot run here: %v", err)
	}
	enginetest.Run(t, enginetest.Subject{
		New:  makeEngine,
		Spec: engine.Spec{Name: "test", Guest: enginetest.BuildTestInit(t), CPUs: 1, MemoryMiB: 192},
	})
}
