package main

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"msb/agentclient"
	"msb/cmd/msb/terminal"
)

// silentAgent is a socket that takes connections and never says a word, as that of a hung guest.
func silentAgent(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }() // until the end of the test: a connection that nobody holds is closed by the collector
		}
	}()
	return path
}

func TestPingOfHungGuest(t *testing.T) {
	path := silentAgent(t)
	r := reach{socket: path, wait: 20 * time.Millisecond}
	err := r.each(t.Context(), newApp(terminal.Test(strings.NewReader(""), io.Discard, io.Discard)), nil,
		func(ctx context.Context, _ string, c *agentclient.Client) error { _, err := c.Ping(ctx); return err })
	if err == nil || !strings.HasPrefix(err.Error(), path+": no answer in ") || strings.Contains(err.Error(), "deadline") {
		t.Errorf("error %v", err)
	}
	if code := exitCode(err); code != exitFailure {
		t.Errorf("exit code %d", code)
	}
}

// An agent that speaks something else is named once.
func TestDialNamesSocketOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = conn.Write([]byte("220 mail.example.org ready\r\n"))
			_ = conn.Close()
		}
	}()
	_, err = target{name: path, socket: path, path: true}.dial(t.Context())
	if err == nil || strings.Count(err.Error(), path) != 1 {
		t.Errorf("error %v", err)
	}
}
