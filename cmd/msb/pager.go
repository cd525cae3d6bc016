package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// pagerCommand is what long text on a terminal is shown with: $MSB_PAGER, else $PAGER, else less; nil when that is empty
// or "cat", or when there is no terminal to page on.
func (a *app) pagerCommand() *exec.Cmd {
	if !a.io.Interactive() {
		return nil
	}
	text := a.io.Env("MSB_PAGER")
	if text == "" {
		text = a.io.Env("PAGER")
	}
	if text == "" {
		if _, err := exec.LookPath("less"); err != nil {
			return nil
		}
		text = "less"
	}
	if text == "cat" {
		return nil
	}
	cmd := exec.Command("/bin/sh", "-c", text)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, os.Stderr
	cmd.Env = os.Environ()
	if a.io.Env("LESS") == "" {
		cmd.Env = append(cmd.Env, "LESS=FRX") // end at once when it fits, colours, and leave it on the screen
	}
	return cmd
}

// paged writes to a pager and waits for it, or to standard output where there is none. That a pager was left before the
// end is no error.
func (a *app) paged(write func(w io.Writer) error) error {
	cmd := a.pagerCommand()
	if cmd == nil {
		return write(a.io.Out)
	}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start the pager: %w; MSB_PAGER=cat goes without", err)
	}
	err = write(in)
	in.Close()
	ended := cmd.Wait()
	if errors.Is(err, syscall.EPIPE) {
		err = nil
	}
	if err == nil && ended != nil {
		err = fmt.Errorf("the pager: %w; MSB_PAGER=cat goes without", ended)
	}
	return err
}
