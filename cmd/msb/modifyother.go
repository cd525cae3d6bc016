package main

import (
	"fmt"
	"strings"
)

// planOther is the plan for a sandbox that is not ours: what its runtime can change while it runs. Its config is its
// own msb's.
func planOther(name string, o *modifyOptions) (*plan, error) {
	usage := func(format string, args ...any) (*plan, error) { return nil, &usageError{fmt.Errorf(format, args...)} }
	if err := o.refuse(); err != nil {
		return nil, err
	}
	for flag, given := range map[string]bool{
		"--next-start": o.nextStart, "--restart": o.restart, "--max-cpus": o.maxCPUs > 0, "--max-memory": o.maxMemory > 0,
		"-e": len(o.env) > 0, "--env-rm": len(o.envRemove) > 0, "--label": len(o.labels) > 0, "--label-rm": len(o.labelsRm) > 0, "-w": o.workdir != "",
	} {
		if given {
			return usage("%s is no sandbox of this msb: only -m, -c, --secret and --secret-rm can change it, not %s", name, flag)
		}
	}
	p := &plan{name: name, live: true, cpus: o.cpus, memory: o.memory, remove: o.secretsRemove}
	var err error
	if p.secrets, err = parseCredentials(o.secrets, o.secretFrom); err != nil {
		return nil, &usageError{err}
	}
	if p.cpus > 0 {
		p.add("cpus", "", fmt.Sprint(p.cpus), true, nil)
	}
	if p.memory > 0 {
		p.add("memory", "", mebibytes(p.memory), true, nil)
	}
	for _, s := range p.secrets {
		p.add("secret "+s.Name, "", strings.Join(s.Hosts, ","), true, nil)
	}
	for _, name := range p.remove {
		p.add("secret "+name, "known", "", true, nil)
	}
	if len(p.changes) == 0 {
		return usage("nothing to change: give -m, -c, --secret or --secret-rm")
	}
	return p, nil
}
