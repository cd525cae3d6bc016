package tui

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	tea "charm.land/bubbletea/v2"
)

// framesPerSecond bounds drawing; a key is on the screen within one frame.
const framesPerSecond = 120

// Run shows the screen until the user leaves it. The terminal is as it was
// afterwards, whatever ended the screen.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := newApp(ctx, o)
	opts := []tea.ProgramOption{tea.WithContext(ctx), tea.WithFPS(framesPerSecond)}
	if o.In != nil {
		opts = append(opts, tea.WithInput(o.In))
	}
	if o.Out != nil {
		opts = append(opts, tea.WithOutput(o.Out))
	}
	if o.Env != nil {
		opts = append(opts, tea.WithEnvironment(o.Env))
	}
	p := tea.NewProgram(a, opts...)
	a.send = p.Send
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	stop := context.AfterFunc(ctx, p.Kill)
	defer stop()
	gone := make(chan struct{})
	go func() {
		select {
		case <-hup:
			p.Quit()
		case <-gone:
		}
	}()
	_, err := p.Run()
	close(gone)
	cancel()
	a.leave()
	switch {
	case errors.Is(err, tea.ErrInterrupted), errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil && !errors.Is(err, tea.ErrProgramPanic):
		return nil
	case err != nil:
		return fmt.Errorf("the screen ended: %w", err)
	}
	return nil
}

// quit ends the screen. The last thing that is drawn is nothing: a terminal that
// has no second screen, such as one in GNU screen, would keep it.
func (a *App) quit() tea.Cmd {
	a.left = true
	return tea.Quit
}

// leave ends the connections and waits for them.
func (a *App) leave() {
	a.closeBox()
	for _, u := range a.use {
		u.stop()
	}
	for _, s := range a.shells {
		if s.Shell != nil {
			a.work.Go(s.Close)
		}
	}
	a.work.Wait()
}
