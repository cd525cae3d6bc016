package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/vmm"
	"msb/vmm/store"
)

func newLsCmd(app *app) *cobra.Command {
	var list listing
	var running, stopped bool
	var labels []string
	cmd := &cobra.Command{
		Use:               "ls",
		Aliases:           []string{"list"},
		Short:             "List sandboxes",
		Example:           "  msb ls\n  msb ls --running -q\n  msb ls --json | jq '.[].name'",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: interruptible(func(ctx context.Context, _ []string) error {
			return listSandboxes(ctx, app, &list, func(sb vmm.Sandbox) bool {
				return (!running || sb.Running()) && (!stopped || !sb.Running()) && hasLabels(sb.Labels, labels)
			}, lsTable)
		}),
	}
	list.flags(cmd, "names only")
	cmd.Flags().BoolVar(&running, "running", false, "only those that run")
	cmd.Flags().BoolVar(&stopped, "stopped", false, "only those that do not run")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "only those with this label, KEY or KEY=VALUE (repeatable)")
	cmd.MarkFlagsMutuallyExclusive("running", "stopped")
	return cmd
}

// listSandboxes writes the sandboxes that pass in the form the user chose.
func listSandboxes(ctx context.Context, app *app, list *listing, pass func(vmm.Sandbox) bool, table func(*app, []vmm.Sandbox) error) error {
	asJSON, err := list.asJSON()
	if err != nil {
		return err
	}
	h, err := app.host()
	if err != nil {
		return err
	}
	all, err := h.List(ctx)
	if err != nil {
		return err
	}
	found := []vmm.Sandbox{}
	for _, sb := range all {
		if pass(sb) {
			found = append(found, sb)
		}
	}
	switch {
	case asJSON:
		views := make([]sandboxView, len(found))
		for i, sb := range found {
			views[i] = viewOf(sb)
		}
		return writeJSON(app.io.Out, views)
	case list.quiet:
		for _, sb := range found {
			if _, err := fmt.Fprintln(app.io.Out, sb.Name); err != nil {
				return err
			}
		}
		return nil
	}
	return table(app, found)
}

func lsTable(app *app, found []vmm.Sandbox) error {
	rows := make([][]string, len(found))
	for i, sb := range found {
		rows[i] = []string{sb.Name, stateText(sb), engineText(sb), orDash(sb.Image), number(sb.CPUs),
			sizeText(sb), age(sb.Created)}
	}
	return writeTable(app.io.Out, []string{"NAME", "STATE", "ENGINE", "IMAGE", "CPUS", "MEMORY", "CREATED"}, rows)
}

// stateText is the state in one word.
func stateText(sb vmm.Sandbox) string {
	if sb.Paused {
		return "paused"
	}
	if sb.Running() && sb.DiskError != "" {
		return string(sb.State) + ", disk failing"
	}
	return string(sb.State)
}

// engineText names the engine and what it runs on; the one without a hardware boundary says so.
func engineText(sb vmm.Sandbox) string {
	if sb.Engine == "process" {
		return "process (no boundary)"
	}
	if sb.Engine == "" {
		return "-" // broken: nobody knows
	}
	return sb.Engine + "/" + orDash(sb.Accel)
}

func sizeText(sb vmm.Sandbox) string {
	if sb.MemoryMiB == 0 {
		return "-"
	}
	return fmt.Sprintf("%d MiB", sb.MemoryMiB)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return ago(time.Since(t)) + " ago"
}

func ago(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", max(0, int(d.Seconds())))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func newPsCmd(app *app) *cobra.Command {
	var list listing
	var all bool
	var labels []string
	cmd := &cobra.Command{
		Use:               "ps [NAME]",
		Aliases:           []string{"status"},
		Short:             "Show what runs, and since when",
		Example:           "  msb ps\n  msb ps -a\n  msb ps demo --json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			if len(args) == 1 {
				if err := store.ValidateName(args[0]); err != nil {
					return &usageError{err}
				}
				h, err := app.home()
				if err != nil {
					return err
				}
				if !h.Exists(args[0]) {
					return unknownSandbox(args[0])
				}
			}
			return listSandboxes(ctx, app, &list, func(sb vmm.Sandbox) bool {
				if len(args) == 1 {
					return sb.Name == args[0]
				}
				return (all || sb.Running()) && hasLabels(sb.Labels, labels)
			}, psTable)
		}),
	}
	list.flags(cmd, "names only")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that do not run")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "only those with this label, KEY or KEY=VALUE (repeatable)")
	return cmd
}

func psTable(app *app, found []vmm.Sandbox) error {
	rows := make([][]string, len(found))
	for i, sb := range found {
		up, mounts := "-", "-"
		if sb.Running() && !sb.Started.IsZero() {
			up = ago(time.Since(sb.Started))
		}
		if len(sb.Mounts) > 0 {
			mounts = sb.Mounts[0].Dir
			if n := len(sb.Mounts) - 1; n > 0 {
				mounts += fmt.Sprintf(" (+%d)", n)
			}
		}
		state := stateText(sb)
		switch {
		case sb.Running() && sb.DiskError != "":
			state += ": " + sb.DiskError
		case sb.Reason != "":
			state += ": " + sb.Reason
		}
		rows[i] = []string{sb.Name, progress.Cut(state, 50), up, engineText(sb), number(sb.RuntimePID), number(sb.EnginePID), mounts}
	}
	return writeTable(app.io.Out, []string{"NAME", "STATE", "UP", "ENGINE", "RUNTIME", "MACHINE", "MOUNT"}, rows)
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}
