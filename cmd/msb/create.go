package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/vmm"
)

func newCreateCmd(app *app) *cobra.Command {
	var m machine
	cmd := &cobra.Command{
		Use:   "create [IMAGE] -n NAME",
		Short: "Make a sandbox and start it",
		Long: `Make a sandbox from an image (default debian), boot it and return when it is ready. A
built-in image that is missing is built first. The name is printed on standard output.`,
		Example: `  msb create -n demo
  msb create tiny -n small -c 2 -m 256M --root-disk 4G
  msb create -n job --label team=infra --max-duration 2h`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: app.completeImages,
		RunE: interruptible(func(ctx context.Context, args []string) error {
			_, err := createSandbox(ctx, app, &m, firstArg(args), app.steps(m.quiet))
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(app.io.Out, m.name)
			return err
		}),
	}
	cmd.Flags().VarP(nameValue{&m.name}, "name", "n", "name of the sandbox (default: a new one)")
	m.flags(app, cmd)
	m.processFlags(cmd)
	cmd.Flags().BoolVar(&m.replace, "replace", false, "remove a sandbox of that name first, also when it runs")
	return cmd
}

// createSandbox makes and starts a sandbox, with the image and the kernel it needs. m.name is filled in when empty.
func createSandbox(ctx context.Context, app *app, m *machine, img string, steps *progress.Steps) (vmm.Sandbox, error) {
	if m.name == "" {
		m.name = generatedName("sb", func() string { return strings.ToLower(rand.Text()) })
	}
	o, err := m.options(app, img)
	if err != nil {
		return vmm.Sandbox{}, err
	}
	h, err := app.host()
	if err != nil {
		return vmm.Sandbox{}, err
	}
	if h.Home.Exists(m.name) && !m.replace {
		return vmm.Sandbox{}, fmt.Errorf("%w: %q; pick another name, or --replace it", vmm.ErrExists, m.name)
	}
	// What cannot work is said before anything is fetched or built.
	if err := h.Home.CheckSockets(m.name); err != nil {
		return vmm.Sandbox{}, err
	}
	if err := checkEngine(ctx, o.Engine); err != nil {
		return vmm.Sandbox{}, err
	}
	if err := app.ensureImage(ctx, o, steps); err != nil {
		return vmm.Sandbox{}, err
	}
	if m.replace && h.Home.Exists(m.name) {
		if err := removeSandbox(ctx, app, h, m.name, true); err != nil && !errors.Is(err, vmm.ErrNotFound) {
			return vmm.Sandbox{}, err
		}
	}
	report, done := watch(steps)
	sb, err := h.Create(ctx, o, report)
	done()
	if err != nil {
		return sb, optionError(err)
	}
	sayBooted(steps, sb)
	return sb, nil
}

// watch shows the events of a start: each replaces the one before on a terminal, warnings stay.
func watch(steps *progress.Steps) (report vmm.Progress, done func()) {
	return func(e vmm.Event) {
		if e.Warning {
			steps.Warn(e.Stage, "%s", shortWarning(e.Text))
		} else {
			steps.Note(e.Stage, e.Text)
		}
	}, steps.End
}

// shortWarning leaves to doctor, which says them too, the reasons why KVM does not work: they are QEMU's own words.
func shortWarning(text string) string {
	if what, _, ok := strings.Cut(text, "(slower): "); ok {
		return what + "(slower): see `msb doctor`"
	}
	return text
}

func sayBooted(steps *progress.Steps, sb vmm.Sandbox) {
	text := sb.Name + ": booted"
	if sb.Boot.Total > 0 {
		text += " in " + progress.Seconds(time.Duration(sb.Boot.Total))
	}
	if sb.Engine == "process" {
		text += ", engine process: no hardware boundary"
	}
	steps.Line("sandbox", "%s", text)
}

// optionError makes a bad value of a flag a usage error.
func optionError(err error) error {
	if errors.Is(err, vmm.ErrOption) {
		return &usageError{err}
	}
	return err
}

func firstArg(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
