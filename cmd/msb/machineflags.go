package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"msb/vmm"
	"msb/vmm/image"
	"msb/vmm/qemu"
	"msb/vmm/store"
)

// machine is what a new sandbox is made of, as flags say it. create, run and up share it.
type machine struct {
	name        string
	engine      string
	accel       string
	cpus        int
	maxCPUs     int
	memory      int
	maxMemory   int
	rootDisk    int64
	kernel      string
	modules     string
	net, noNet  bool
	env         []string
	user        string
	workdir     string
	labels      []string
	hostname    string
	idleTimeout time.Duration
	maxDuration time.Duration
	replace     bool
	quiet       bool
}

func (m *machine) flags(app *app, cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&m.engine, "engine", "qemu", "qemu, or process (no hardware boundary, root only)")
	f.StringVar(&m.accel, "accel", "auto", "auto, kvm or tcg")
	f.VarP(cpusValue{&m.cpus}, "cpus", "c", "CPUs (default 1)")
	f.Var(cpusValue{&m.maxCPUs}, "max-cpus", "CPUs it can be resized to")
	f.VarP(mebibytesValue{&m.memory}, "memory", "m", "memory, such as 512M or 2G; a bare number is MiB (default 512M)")
	f.Var(mebibytesValue{&m.maxMemory}, "max-memory", "memory it can be resized to")
	f.Var(bytesValue{&m.rootDisk, vmm.MinRootDisk}, "root-disk", "size of the disk, which is sparse (default 16G)")
	f.StringVar(&m.kernel, "kernel", "", "a kernel of your own (bzImage or vmlinux)")
	f.StringVar(&m.modules, "modules", "", "that kernel's modules (/lib/modules/VERSION)")
	f.BoolVar(&m.net, "net", false, "a network with a way out, also to this host's localhost (as 10.0.2.2)")
	f.BoolVar(&m.noNet, "no-net", false, "no network (the default)")
	f.StringVarP(&m.hostname, "hostname", "H", "", "host name in the sandbox (default NAME)")
	f.StringArrayVar(&m.labels, "label", nil, "label, KEY or KEY=VALUE (repeatable)")
	f.Var(durationValue{&m.idleTimeout}, "idle-timeout", "stop it after this long without activity")
	f.Var(durationValue{&m.maxDuration}, "max-duration", "stop it after this long")
	f.BoolVarP(&m.quiet, "quiet", "q", false, "no progress")
	complete := func(flag string, choices ...string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("engine", "qemu", "process")
	complete("accel", "auto", "kvm", "tcg")
	cmd.MarkFlagsMutuallyExclusive("net", "no-net")
}

// processFlags are the defaults of every command in the sandbox.
func (m *machine) processFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVarP(&m.env, "env", "e", nil, "environment of every command, NAME=VALUE (repeatable)")
	f.StringVarP(&m.user, "user", "u", "", "user of every command (default dev)")
	f.StringVarP(&m.workdir, "workdir", "w", "", "directory of every command (default /home/dev)")
}

// options checks the flags and turns them into what the host side takes.
func (m *machine) options(app *app, img string) (vmm.CreateOptions, error) {
	o := vmm.CreateOptions{Name: m.name, Image: img, Engine: m.engine, Accel: m.accel, CPUs: m.cpus, MaxCPUs: m.maxCPUs,
		MemoryMiB: m.memory, MaxMemoryMiB: m.maxMemory, RootDisk: m.rootDisk, Net: m.net, User: m.user,
		Workdir: m.workdir, Hostname: m.hostname, IdleTimeout: m.idleTimeout, MaxDuration: m.maxDuration}
	if o.Image == "" {
		o.Image = image.Default
	}
	var err error
	if err = store.ValidateName(m.name); err != nil {
		return o, &usageError{err}
	}
	if o.Env, err = app.checkEnv(m.env); err != nil {
		return o, &usageError{err}
	}
	if o.Labels, err = parseLabels(m.labels); err != nil {
		return o, &usageError{err}
	}
	for flag, path := range map[*string]string{&o.Kernel: m.kernel, &o.Modules: m.modules} {
		if path != "" {
			if *flag, err = filepath.Abs(path); err != nil {
				return o, err
			}
		}
	}
	switch {
	case m.engine != "qemu" && m.engine != "process":
		return o, &usageError{fmt.Errorf("--engine %q: there are qemu and process", m.engine)}
	case m.accel != "auto" && m.accel != "kvm" && m.accel != "tcg":
		return o, &usageError{fmt.Errorf("--accel %q: there are auto, kvm and tcg", m.accel)}
	case m.memory != 0 && m.memory < qemu.MinMemoryMiB:
		return o, &usageError{fmt.Errorf("-m %s is too little: a sandbox needs at least %d MiB", formatSize(int64(m.memory)<<20), qemu.MinMemoryMiB)}
	}
	return o, nil
}
