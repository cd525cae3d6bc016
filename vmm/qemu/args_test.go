package qemu

import (
	"slices"
	"strings"
	"testing"

	"msb/vmm/engine"
)

func spec(change func(*engine.Spec)) engine.Spec {
	s := engine.Spec{
		Name: "demo", Kernel: "/k", Initrd: "/i", CPUs: 2, MaxCPUs: 8, MemoryMiB: 512, MaxMemoryMiB: 512,
		Disk: "/d,isk", Cmdline: []string{"a=b"},
	}
	if change != nil {
		change(&s)
	}
	return s
}

func line(t *testing.T, s engine.Spec, accel string) []string {
	t.Helper()
	mem, err := layout(s.MemoryMiB, s.MaxMemoryMiB)
	if err != nil {
		t.Fatal(err)
	}
	args, err := arguments(s, accel, mem)
	if err != nil {
		t.Fatal(err)
	}
	return args
}

// The guest must see the same machine under KVM and TCG; an emulated one is also told its clock.
func TestOnlyAcceleratorAndCPUDiffer(t *testing.T) {
	without := func(args []string) []string {
		var out []string
		for i := 0; i < len(args); i++ {
			if args[i] == "-accel" || args[i] == "-cpu" {
				i++
				continue
			}
			words := strings.Fields(args[i])
			words = slices.DeleteFunc(words, func(w string) bool { return strings.HasPrefix(w, "tsc") })
			out = append(out, strings.Join(words, " "))
		}
		return out
	}
	kvm, tcg := line(t, spec(nil), engine.AccelKVM), line(t, spec(nil), engine.AccelTCG)
	if slices.Equal(kvm, tcg) || !slices.Equal(without(kvm), without(tcg)) {
		t.Errorf("kvm %q\ntcg %q", kvm, tcg)
	}
}

func TestArguments(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*engine.Spec)
		has    []string
		not    []string
	}{
		"plain": {
			has: []string{"cpus=2,maxcpus=8", `"filename":"/d,isk"`, `"driver":"qcow2"`, "werror=report,rerror=report", " a=b", "name=agent"},
			not: []string{"netdev", "agent-bulk", "dual-port", "virtio-mem"},
		},
		"raw disk":  {change: func(s *engine.Spec) { s.DiskFormat = engine.Raw }, has: []string{`"driver":"raw"`}, not: []string{"qcow2"}},
		"no disk":   {change: func(s *engine.Spec) { s.Disk = "" }, not: []string{"virtio-blk", "blockdev"}},
		"two ports": {change: func(s *engine.Spec) { s.DualPort = true }, has: []string{"name=agent-bulk", engine.WordDualPort}},
		"network":   {change: func(s *engine.Spec) { s.Net = true }, has: []string{"virtio-net-pci"}},
		"can grow":  {change: func(s *engine.Spec) { s.MaxMemoryMiB = 2048 }, has: []string{"size=256M,maxmem=2048M", "requested-size=256M"}},
		"odd name":  {change: func(s *engine.Spec) { s.Name = "a,process=b" }, has: []string{"msb-a,,process=b"}},
	} {
		t.Run(name, func(t *testing.T) {
			all := strings.Join(line(t, spec(c.change), engine.AccelTCG), " ")
			for _, want := range c.has {
				if !strings.Contains(all, want) {
					t.Errorf("no %q in %s", want, all)
				}
			}
			for _, bad := range c.not {
				if strings.Contains(all, bad) {
					t.Errorf("%q in %s", bad, all)
				}
			}
		})
	}
}

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		want, maximum int
		layout        memory
	}{
		{512, 512, memory{boot: 512}},
		{512, 1024, memory{256, 768, 256}},
		{200, 1024, memory{200, 896, 0}}, // rounded up to whole sections
		{513, 4096, memory{512, 3584, 2}},
		{1024, 16384, memory{1024, 15360, 0}}, // boot memory must carry the page structures of the maximum
		{4096, 16384, memory{2048, 14336, 2048}},
	} {
		got, err := layout(c.want, c.maximum)
		if err != nil || got != c.layout {
			t.Errorf("layout(%d, %d) = %+v, %v; want %+v", c.want, c.maximum, got, err, c.layout)
		}
		if got.boot+got.requested < c.want || got.boot+got.device < c.maximum {
			t.Errorf("layout(%d, %d) = %+v gives too little", c.want, c.maximum, got)
		}
	}
	for _, c := range [][2]int{{1, 1}, {0, 512}, {127, 512}, {512, 1 << 30}} {
		if got, err := layout(c[0], c[1]); err == nil {
			t.Errorf("layout(%d, %d) = %+v", c[0], c[1], got)
		}
	}
}
