package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/protocol/control"
	"msb/vmm"
	"msb/vmm/store"
)

// modifyOptions are the flags of modify.
type modifyOptions struct {
	cpus, maxCPUs     int
	memory, maxMemory int
	env, envRemove    []string
	labels, labelsRm  []string
	workdir           string
	secrets           []string
	secretFrom        string
	secretsRemove     []string
	dryRun            bool
	nextStart         bool
	restart           bool
	noWait            bool
	timeout           time.Duration
	list              listing
	quiet             bool
	socket            string
	refused           struct {
		compact, rootDiskOnly  bool
		layers, disk, rootDisk string
	}
}

func newModifyCmd(app *app) *cobra.Command {
	o := modifyOptions{timeout: 30 * time.Second}
	cmd := &cobra.Command{
		Use:     "modify NAME",
		Aliases: []string{"mod"},
		Short:   "Change the size, the secrets and the settings of a sandbox",
		Long: `Change a sandbox. Memory, CPUs, secrets and labels change at once while it runs and are kept
for the next start; the rest counts from the next start on, so ask for that with --next-start or
--restart. Memory that the guest uses is not taken from it: modify waits a while for the guest to
give it back and says what is there. It cannot grow past the --max-memory and --max-cpus that the
sandbox was started with.

The value of a secret never stands on the command line. It is read from the environment variable
of the secret's name, or from --secret-from, and goes to the memory of the sandbox's runtime; at
the next start it is read from the same source again. The guest never sees it.`,
		Example: `  msb modify demo -m 2G -c 4
  msb modify demo --max-memory 8G --restart
  msb modify demo --secret API_KEY@api.example.com
  pass show api | msb modify demo --secret API_KEY@api.example.com --secret-from stdin
  msb modify demo --secret-rm API_KEY`,
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			return app.modify(ctx, args, &o)
		}),
	}
	f := cmd.Flags()
	f.VarP(cpusValue{&o.cpus}, "cpus", "c", "CPUs that it uses")
	f.Var(cpusValue{&o.maxCPUs}, "max-cpus", "CPUs that it can be resized to (next start)")
	f.VarP(mebibytesValue{&o.memory}, "memory", "m", "memory, such as 512M or 2G; a bare number is MiB")
	f.Var(mebibytesValue{&o.maxMemory}, "max-memory", "memory that it can be resized to (next start)")
	f.StringArrayVarP(&o.env, "env", "e", nil, "environment of every command, NAME=VALUE (next start; repeatable)")
	f.StringArrayVar(&o.envRemove, "env-rm", nil, "take a variable out of it (next start; repeatable)")
	f.StringArrayVar(&o.labels, "label", nil, "label, KEY or KEY=VALUE (repeatable)")
	f.StringArrayVar(&o.labelsRm, "label-rm", nil, "take a label away (repeatable)")
	f.StringVarP(&o.workdir, "workdir", "w", "", "directory of every command (next start)")
	f.StringArrayVar(&o.secrets, "secret", nil, "secret and who may get it, NAME@HOST[,HOST] (repeatable)")
	f.StringVar(&o.secretFrom, "secret-from", "", "where its value is: env:VARIABLE (default env:NAME), file:PATH, command:COMMAND or stdin")
	f.StringArrayVar(&o.secretsRemove, "secret-rm", nil, "take a secret away (repeatable)")
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would change, and change nothing")
	f.BoolVar(&o.nextStart, "next-start", false, "change nothing that runs, only the next start")
	f.BoolVar(&o.restart, "restart", false, "restart it with the changes")
	f.BoolVar(&o.noWait, "no-wait", false, "do not wait for the guest to follow")
	f.Var(durationValue{&o.timeout}, "timeout", "how long to wait for the guest")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "no progress")
	o.list.flags(cmd, "")
	controlFlag(cmd, &o.socket)
	r := &o.refused
	f.BoolVar(&r.compact, "compact", false, "")
	f.BoolVar(&r.rootDiskOnly, "root-disk-only", false, "")
	f.StringVar(&r.layers, "layers", "", "")
	f.StringVar(&r.disk, "disk", "", "")
	f.StringVar(&r.rootDisk, "root-disk", "", "")
	for _, name := range []string{"compact", "root-disk-only", "layers", "disk", "root-disk"} {
		_ = f.MarkHidden(name)
	}
	cmd.MarkFlagsMutuallyExclusive("next-start", "restart")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "restart")
	return cmd
}

func (a *app) modify(ctx context.Context, args []string, o *modifyOptions) error {
	asJSON, err := o.list.asJSON()
	if err != nil {
		return err
	}
	t, err := a.controlled(ctx, args, o.socket)
	if err != nil {
		return err
	}
	var p *plan
	if t.own == nil {
		p, err = planOther(t.name, o)
	} else {
		p, err = a.planChanges(*t.own, o)
	}
	if err != nil {
		return err
	}
	if o.dryRun {
		return a.showPlan(p, asJSON)
	}
	for i := range p.secrets {
		if err := p.secrets[i].read(ctx, a); err != nil {
			return err
		}
	}
	steps := a.steps(o.quiet || asJSON)
	switch {
	case p.live:
		err = p.apply(ctx, t, o, steps)
	default:
		err = a.modifyStopped(ctx, t, p, o.restart, steps)
	}
	if err != nil {
		return err
	}
	if asJSON {
		return a.showPlan(p, true)
	}
	return nil
}

// modifyStopped changes the config of a sandbox of ours, and restarts it with that where it runs and it was asked for.
func (a *app) modifyStopped(ctx context.Context, t controlled, p *plan, restart bool, steps *progress.Steps) error {
	h := t.host
	if err := p.save(h, everything); err != nil {
		return err
	}
	if !restart || !t.own.Running() {
		steps.Line("sandbox", "%s: changed%s", t.name, map[bool]string{true: ", from the next start on", false: ""}[t.own.Running()])
		return nil
	}
	steps.Note("sandbox", t.name+": shutting down")
	err := h.Stop(ctx, t.name, vmm.StopOptions{})
	steps.End()
	if err != nil && !errors.Is(err, vmm.ErrNotRunning) && !errors.Is(err, vmm.ErrForced) {
		return err
	}
	sb, err := startSandbox(ctx, h, t.name, steps)
	if err != nil {
		return err
	}
	t.own, t.socket = &sb, sb.ControlSocket
	return p.giveOnce(ctx, t, steps)
}

// planned is one change, as modify prints it.
type planned struct {
	What string `json:"what"`
	From string `json:"from"`
	To   string `json:"to"`
	When string `json:"when"` // "now" or "next start"

	change func(*store.Config)
}

// plan is what modify is going to do.
type plan struct {
	name    string
	live    bool // the sandbox runs and is changed as it does
	changes []planned
	cpus    int
	memory  int
	secrets []credential
	remove  []string
	result  modified
}

// modified is what the runtime said.
type modified struct {
	Memory *control.MemoryState `json:"memory,omitempty"`
	CPU    *control.CPUState    `json:"cpu,omitempty"`
}

// refuse says why flags of a stock msb do nothing here.
func (o *modifyOptions) refuse() error {
	switch r := o.refused; {
	case r.compact || r.layers != "" || r.disk != "" || r.rootDiskOnly:
		return &usageError{errors.New("modify cannot compact disks: a sandbox's disk is one sparse file; `fstrim /` in the sandbox gives freed blocks back")}
	case r.rootDisk != "":
		return &usageError{fmt.Errorf("the root disk of a sandbox keeps its size; make a new one with `msb create --root-disk %s`", r.rootDisk)}
	}
	return nil
}

// planChanges checks the flags against the sandbox before anything is touched.
func (a *app) planChanges(sb vmm.Sandbox, o *modifyOptions) (*plan, error) {
	usage := func(format string, args ...any) (*plan, error) { return nil, &usageError{fmt.Errorf(format, args...)} }
	if err := o.refuse(); err != nil {
		return nil, err
	}
	p := &plan{name: sb.Name, live: sb.State == store.Running && !o.nextStart && !o.restart, remove: o.secretsRemove}
	if sb.Running() && !p.live && sb.State != store.Running {
		return nil, fmt.Errorf("sandbox %q is %s: try again in a moment", sb.Name, sb.State)
	}
	var err error
	if p.secrets, err = parseCredentials(o.secrets, o.secretFrom); err != nil {
		return nil, &usageError{err}
	}
	labels, err := parseLabels(o.labels)
	if err != nil {
		return nil, &usageError{err}
	}
	env, err := a.checkEnv(o.env)
	if err != nil {
		return nil, &usageError{err}
	}
	if o.workdir != "" && !strings.HasPrefix(o.workdir, "/") {
		return usage("-w %q: give an absolute path in the sandbox", o.workdir)
	}
	for _, s := range p.secrets {
		if s.From.IsZero() && !p.live && !(o.restart && sb.Running()) {
			return nil, fmt.Errorf("secret %s: a value from standard input is kept in the memory of a running sandbox only: start %q first, or give a source that can be read again", s.Name, sb.Name)
		}
	}
	p.size(sb, o)
	p.settings(sb, o, env, labels)
	p.credentials(sb)
	switch {
	case len(p.changes) == 0:
		return usage("nothing to change: give -m, -c, --secret or another flag")
	case p.live:
		for _, c := range p.changes {
			if c.When != now {
				return nil, fmt.Errorf("%s of %q cannot change while it runs: add --restart, or --next-start to have it from the next start on", c.What, sb.Name)
			}
		}
	}
	// What the next start would refuse is refused now.
	c := store.Config{CPUs: sb.CPUs, MaxCPUs: sb.MaxCPUs, MemoryMiB: sb.MemoryMiB, MaxMemoryMiB: sb.MaxMemoryMiB}
	for _, x := range p.changes {
		x.change(&c)
	}
	return p, vmm.CheckSize(c)
}

const (
	now       = "now"
	nextStart = "next start"
)

func (p *plan) add(what, from, to string, live bool, change func(*store.Config)) {
	when := nextStart
	if live && p.live {
		when = now
	}
	p.changes = append(p.changes, planned{what, from, to, when, change})
}

// size plans CPUs and memory. The maximum grows with the size where the sandbox does not run.
func (p *plan) size(sb vmm.Sandbox, o *modifyOptions) {
	if o.maxCPUs > 0 {
		p.add("max-cpus", fmt.Sprint(sb.MaxCPUs), fmt.Sprint(o.maxCPUs), false, func(c *store.Config) { c.MaxCPUs = o.maxCPUs })
	}
	if o.maxMemory > 0 {
		p.add("max-memory", mebibytes(sb.MaxMemoryMiB), mebibytes(o.maxMemory), false, func(c *store.Config) { c.MaxMemoryMiB = o.maxMemory })
	}
	if o.cpus > 0 {
		p.cpus = o.cpus
		p.add("cpus", fmt.Sprint(sb.CPUs), fmt.Sprint(o.cpus), true, func(c *store.Config) {
			c.CPUs = o.cpus
			if !p.live && o.maxCPUs == 0 {
				c.MaxCPUs = max(c.MaxCPUs, c.CPUs)
			}
		})
	}
	if o.memory > 0 {
		p.memory = o.memory
		p.add("memory", mebibytes(sb.MemoryMiB), mebibytes(o.memory), true, func(c *store.Config) {
			c.MemoryMiB = o.memory
			if !p.live && o.maxMemory == 0 {
				c.MaxMemoryMiB = max(c.MaxMemoryMiB, c.MemoryMiB)
			}
		})
	}
}

func (p *plan) settings(sb vmm.Sandbox, o *modifyOptions, env []string, labels map[string]string) {
	for _, kv := range env {
		key, _, _ := strings.Cut(kv, "=")
		// A value may be private: only the name is shown.
		p.add("env", "", key, false, func(c *store.Config) { c.Env = append(withoutEnv(c.Env, key), kv) })
	}
	for _, key := range o.envRemove {
		p.add("env", key, "", false, func(c *store.Config) { c.Env = withoutEnv(c.Env, key) })
	}
	for key, value := range labels {
		p.add("label", sb.Labels[key], key+"="+value, true, func(c *store.Config) {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			c.Labels[key] = value
		})
	}
	for _, key := range o.labelsRm {
		p.add("label", key, "", true, func(c *store.Config) { delete(c.Labels, key) })
	}
	if o.workdir != "" {
		p.add("workdir", sb.Workdir, o.workdir, false, func(c *store.Config) { c.Workdir = o.workdir })
	}
}

func (p *plan) credentials(sb vmm.Sandbox) {
	for _, s := range p.secrets {
		before := ""
		if i := slices.IndexFunc(sb.Secrets, named(s.Name)); i >= 0 {
			before = strings.Join(sb.Secrets[i].Hosts, ",")
		}
		d := s.Declaration
		p.add("secret "+s.Name, before, strings.Join(d.Hosts, ","), true, func(c *store.Config) {
			c.Secrets = append(slices.DeleteFunc(c.Secrets, named(d.Name)), d)
		})
	}
	for _, name := range p.remove {
		p.add("secret "+name, "known", "", true, func(c *store.Config) { c.Secrets = slices.DeleteFunc(c.Secrets, named(name)) })
	}
}

func withoutEnv(env []string, key string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, key+"=") })
}

func mebibytes(n int) string { return formatSize(int64(n) << 20) }

func everything(string) bool { return true }

// save writes the changes that accepted lets through to the config.
func (p *plan) save(h *vmm.Host, accepted func(what string) bool) error {
	_, err := h.Home.Update(p.name, func(c *store.Config) error {
		for _, x := range p.changes {
			if accepted(x.What) {
				x.change(c)
			}
		}
		return vmm.CheckSize(*c)
	})
	return err
}

func (a *app) showPlan(p *plan, asJSON bool) error {
	if asJSON {
		return writeJSON(a.io.Out, struct {
			Name    string    `json:"name"`
			Changes []planned `json:"changes"`
			modified
		}{p.name, p.changes, p.result})
	}
	rows := make([][]string, len(p.changes))
	for i, c := range p.changes {
		rows[i] = []string{c.What, orDash(c.From), orDash(c.To), c.When}
	}
	return writeTable(a.io.Out, []string{"CHANGE", "FROM", "TO", "WHEN"}, rows)
}
