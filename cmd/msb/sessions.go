package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"msb/turn"
	"msb/turn/socket"
	"msb/turn/visible"
)

func newSessionCmd(app *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "session",
		Short:   "List, show, rename and remove sessions of the agent",
		Example: "  msb session ls demo\n  msb session show demo 3f2a",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSessionLsCmd(app), newSessionShowCmd(app), newSessionRmCmd(app), newSessionRenameCmd(app))
	return cmd
}

// sessions is what the commands need: the engine of a running sandbox, or its files.
type sessions interface {
	list(ctx context.Context) ([]turn.Info, error)
	show(ctx context.Context, ref string) (turn.Info, error)
	rename(ctx context.Context, ref, name string) error
	// remove ends the turn under way only if force is set.
	remove(ctx context.Context, ref string, force bool) error
}

type liveSessions struct{ c *socket.Client }

func (s liveSessions) list(ctx context.Context) ([]turn.Info, error) { return s.c.Sessions(ctx) }
func (s liveSessions) show(ctx context.Context, ref string) (turn.Info, error) {
	return s.c.Show(ctx, ref)
}
func (s liveSessions) rename(ctx context.Context, ref, name string) error {
	return s.c.Rename(ctx, ref, name)
}
func (s liveSessions) remove(ctx context.Context, ref string, force bool) error {
	i, err := s.c.Show(ctx, ref)
	if err != nil {
		return err
	}
	if i.State == turn.StateTurn && !force {
		return fmt.Errorf("session %s: %w; --force cancels it", short(i), turn.ErrTurnActive)
	}
	if err := s.c.CloseSession(ctx, ref); err != nil {
		return err
	}
	return s.c.Remove(ctx, ref)
}

type storedSessions struct{ s *turn.Store }

func closedSession(r turn.Record) turn.Info { return turn.Info{Record: r, State: turn.StateClosed} }

func (s storedSessions) list(context.Context) ([]turn.Info, error) {
	records, err := s.s.List()
	var list []turn.Info
	for _, r := range records {
		list = append(list, closedSession(r))
	}
	return list, err
}
func (s storedSessions) show(_ context.Context, ref string) (turn.Info, error) {
	r, err := s.s.Find(ref)
	return closedSession(r), err
}
func (s storedSessions) rename(_ context.Context, ref, name string) error {
	_, err := s.s.Rename(ref, name)
	return err
}
func (s storedSessions) remove(_ context.Context, ref string, _ bool) error {
	_, err := s.s.Remove(ref)
	return err
}

// sessionsOf is the sessions of a sandbox, running or not. done must be called.
func (a *app) sessionsOf(ctx context.Context, name string) (s sessions, done func(), err error) {
	h, err := a.ownSandbox(name)
	if err != nil {
		return nil, nil, err
	}
	c, err := socket.Dial(ctx, h.TurnSocket(name))
	if err == nil {
		return liveSessions{c}, func() { c.Close() }, nil
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return storedSessions{turn.OpenStore(sessionsPath(h.SandboxDir(name)))}, func() {}, nil
	}
	return nil, nil, err
}

func newSessionLsCmd(app *app) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:               "ls NAME",
		Aliases:           []string{"list"},
		Short:             "List the sessions of a sandbox, last used first",
		Example:           "  msb session ls demo\n  msb session ls demo --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			asJSON, err := l.asJSON()
			if err != nil {
				return err
			}
			s, done, err := app.sessionsOf(ctx, args[0])
			if err != nil {
				return err
			}
			defer done()
			list, err := s.list(ctx)
			switch {
			case err != nil:
				return err
			case asJSON:
				return writeJSON(app.io.Out, append([]turn.Info{}, list...))
			case l.quiet:
				for _, i := range list {
					fmt.Fprintln(app.io.Out, i.ID)
				}
				return nil
			}
			var rows [][]string
			for _, i := range list {
				rows = append(rows, []string{i.ID[:8], visible.Text(i.Name), i.State, visible.Text(i.Model), fmt.Sprint(i.Turns),
					i.Used.Local().Format(time.DateTime), visible.Text(i.Title)})
			}
			return writeTable(app.io.Out, []string{"SESSION", "NAME", "STATE", "MODEL", "TURNS", "USED", "FIRST PROMPT"}, rows)
		}),
	}
	l.flags(cmd, "only the ids")
	return cmd
}

func newSessionShowCmd(app *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "show NAME SESSION",
		Short:             "Show what was said and done in a session",
		Example:           "  msb session show demo 3f2a\n  msb session show demo 3f2a --json",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			s, done, err := app.sessionsOf(ctx, args[0])
			if err != nil {
				return err
			}
			defer done()
			i, err := s.show(ctx, args[1])
			if err != nil {
				return err
			}
			h, err := app.home()
			if err != nil {
				return err
			}
			return app.showSession(ctx, turn.OpenStore(sessionsPath(h.SandboxDir(args[0]))).TranscriptPath(i.ID), i, asJSON)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "its events as JSON, one a line")
	return cmd
}

// showSession prints a transcript; a later line is not waited for.
func (a *app) showSession(ctx context.Context, path string, i turn.Info, asJSON bool) error {
	printer := newEventPrinter(a, asJSON)
	if text, ok := printer.(*textPrinter); ok {
		text.err = a.io.Out // one story
		fmt.Fprintf(a.io.Out, "session %s%s, %s, model %s, turns: %d\n", i.ID, inBrackets(i.Name), i.State, visible.Text(i.Model), i.Turns)
	}
	err := turn.ReadTranscript(path, func(e turn.Event) bool {
		if text, ok := printer.(*textPrinter); ok {
			text.past(e)
		} else {
			printer.event(e)
		}
		return ctx.Err() == nil && printer.failed() == nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, printer.failed(), context.Cause(ctx))
}

func inBrackets(name string) string {
	if name == "" {
		return ""
	}
	return " (" + visible.Text(name) + ")"
}

// past prints an event of a transcript: the prompts and the ends of turns too.
func (p *textPrinter) past(e turn.Event) {
	switch e.Kind {
	case turn.KindUser:
		p.words("")
		fmt.Fprintf(p.out, "\n%s  you: %s\n", e.Time.Local().Format(time.DateTime), visible.Lines(e.Text))
	case turn.KindEnd:
		p.event(e)
		if e.Code != "" {
			fmt.Fprintf(p.out, "  the turn ended: %s %s\n", visible.Text(e.Status), visible.Text(e.Err))
		}
	default:
		p.event(e)
	}
}

func newSessionRmCmd(app *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:               "rm NAME SESSION...",
		Short:             "Remove sessions with their transcripts",
		Example:           "  msb session rm demo 3f2a",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			s, done, err := app.sessionsOf(ctx, args[0])
			if err != nil {
				return err
			}
			defer done()
			var errs []error
			for _, ref := range args[1:] {
				errs = append(errs, s.remove(ctx, ref, force))
			}
			return errors.Join(errs...)
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "cancel a turn that is under way")
	return cmd
}

func newSessionRenameCmd(app *app) *cobra.Command {
	return &cobra.Command{
		Use:               "rename NAME SESSION NEW",
		Short:             "Give a session a name",
		Example:           "  msb session rename demo 3f2a flaky-test\n  msb session rename demo flaky-test ''",
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: app.completeNames(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			s, done, err := app.sessionsOf(ctx, args[0])
			if err != nil {
				return err
			}
			defer done()
			return s.rename(ctx, args[1], args[2])
		}),
	}
}
