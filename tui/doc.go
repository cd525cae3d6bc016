// Package tui is the workstation: turns, approvals, shells and files of a
// sandbox on one screen. It is a client like any other, of turn.sock,
// control.sock and agent.sock; leaving it stops nothing.
package tui
