package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"msb/vmm"
)

func newResetCmd(app *app) *cobra.Command {
	var yes, quiet bool
	cmd := &cobra.Command{
		Use:   "reset NAME",
		Short: "Give a stopped sandbox a fresh disk (asks first)",
		Long: `Throw the disk of a stopped sandbox away and give it a fresh one from its image. Everything
that was done in it is lost, so it asks first.`,
		Example:           "  msb reset demo\n  msb reset -y demo     # without the question, for scripts",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			name := args[0]
			h, err := app.host()
			if err != nil {
				return err
			}
			sb, err := h.Inspect(ctx, name)
			if errors.Is(err, vmm.ErrNotFound) {
				return unknownSandbox(name)
			}
			if err != nil {
				return err
			}
			if sb.Running() {
				return fmt.Errorf("%w: %q; stop it first: `msb stop %s`", vmm.ErrRunning, name, name)
			}
			if !yes {
				ok, err := app.confirm(ctx, fmt.Sprintf("All files in %s will be lost. Reset it?", name))
				if err != nil {
					return err
				}
				if !ok {
					return &exitError{exitFailure, errors.New("not reset")}
				}
			}
			steps := app.steps(quiet)
			report, done := watch(steps)
			err = h.Reset(ctx, name, report)
			done()
			if err != nil {
				return err
			}
			steps.Line("sandbox", "%s: has a fresh disk; `msb start %s`", name, name)
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "say nothing but errors")
	return cmd
}

// confirm asks a question whose answer is yes or no. Without a terminal the answer is no, with a hint at -y.
func (a *app) confirm(ctx context.Context, question string) (bool, error) {
	if !a.io.InTTY() {
		return false, &usageError{errors.New(strings.ToLower(question[:1]) + question[1:] + " There is no terminal to ask on: use -y")}
	}
	fmt.Fprintf(a.io.Err, "%s [y/N] ", question)
	in, err := a.io.Input()
	if err != nil {
		return false, err
	}
	defer in.Close()
	defer context.AfterFunc(ctx, in.Stop)()
	answer, _ := bufio.NewReader(in).ReadString('\n') // an end of file is a no
	if ctx.Err() != nil {
		fmt.Fprintln(a.io.Err)
		return false, ctx.Err()
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}
