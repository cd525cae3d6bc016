package main

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
)

// Exit codes of msb itself. A command that runs inside a sandbox passes its own code through (exec, run, shell).
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotClean    = 3   // stop: the guest did not power itself off
	exitTimeout     = 124 // exec --timeout
	exitOwnFailure  = 125 // exec, run, shell: msb failed, not the command
	exitNotExec     = 126 // the command is there but cannot be executed
	exitNotFound    = 127 // the command was not found in the guest
	exitInterrupted = 130 // Ctrl-C
	exitSIGKILL     = 137 // killed by a signal that the guest did not name
	exitBrokenPipe  = 141 // the reader of our output went away
)

// exitError carries an exit code. A nil err means that nothing is left to say.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a mistake in how msb was called: exit code 2 and a hint at --help.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// exitCodes is the one table from errors to exit codes; the first match wins.
var exitCodes = []struct {
	is   func(error) bool
	code func(error) int
}{
	{is: as[*exitError], code: func(err error) int { var e *exitError; errors.As(err, &e); return e.code }},
	{is: as[*usageError], code: fixed(exitUsage)},
	{is: wraps(syscall.EPIPE), code: fixed(exitBrokenPipe)},
	{is: wraps(context.Canceled), code: fixed(exitInterrupted)},
	{is: wraps(context.DeadlineExceeded), code: fixed(exitTimeout)},
	{is: wraps(fs.ErrNotExist), code: fixed(exitFailure)},
}

// exitCode maps the error a command returned to the exit code of the process.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	for _, e := range exitCodes {
		if e.is(err) {
			return e.code(err)
		}
	}
	return exitFailure
}

func as[T error](err error) bool { var t T; return errors.As(err, &t) }

func wraps(t error) func(error) bool { return func(err error) bool { return errors.Is(err, t) } }

func fixed(code int) func(error) int { return func(error) int { return code } }
