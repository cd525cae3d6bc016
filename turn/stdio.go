package turn

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"msb/agentclient"
	"msb/protocol/turnrpc"
)

// GuestPath is where a sandbox of ours has its guest program.
const GuestPath = "/run/msb/msb-guest"

// GuestUser is who the turn agent is started as. It keeps root for the one
// process that starts approved commands as dev; the process that speaks the
// RPC gives up every right before it reads a frame.
const GuestUser = "root"

// Stdio configures a turn agent that is a command in the sandbox and speaks on
// its standard input and output.
type Stdio struct {
	Path string // "": GuestPath
	User string // "": GuestUser
	Log  *slog.Logger
}

// exitPatience is how long the agent may take to end after its input did.
const exitPatience = time.Second

// Dial starts the agent. Its configuration, which holds the session's secret,
// is the first line of its input, and never in its arguments or environment.
// Closing the stream ends the agent.
func (s Stdio) Dial(ctx context.Context, c *agentclient.Client, config turnrpc.GuestConfig) (io.ReadWriteCloser, error) {
	if s.Path == "" {
		s.Path = GuestPath
	}
	if s.User == "" {
		s.User = GuestUser
	}
	line, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	e, err := c.Exec(ctx, agentclient.ExecSpec{
		Cmd: s.Path, Args: []string{"turn", "--rpc", "stdio"}, User: s.User, Cwd: "/",
	})
	if err != nil {
		return nil, fmt.Errorf("start %s as %s: %w", s.Path, s.User, err)
	}
	t := &stdio{e: e, stdin: e.Stdin(), stdout: e.Stdout()}
	t.work.Go(func() { logLines(e.Stderr(), s.Log) })
	stop := context.AfterFunc(ctx, func() { t.Close() })
	_, err = t.stdin.Write(append(line, '\n'))
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("configure the turn agent: %w", err)
	}
	return t, nil
}

// stdio is a command as a stream.
type stdio struct {
	e      *agentclient.Exec
	stdin  io.WriteCloser
	stdout io.Reader
	once   sync.Once
	work   sync.WaitGroup
}

func (t *stdio) Read(p []byte) (int, error)  { return t.stdout.Read(p) }
func (t *stdio) Write(p []byte) (int, error) { return t.stdin.Write(p) }

// Close ends the command's input, waits a moment for it to end, and kills it.
func (t *stdio) Close() error {
	t.once.Do(func() {
		closed := make(chan struct{})
		go func() { // a full pipe can hold it up until the kill
			defer close(closed)
			t.stdin.Close()
		}()
		timer := time.NewTimer(exitPatience)
		defer timer.Stop()
		select {
		case <-t.e.Done():
		case <-timer.C:
		}
		t.e.Close()
		<-closed
		t.work.Wait()
	})
	return nil
}

// maxSaidLog bounds what one agent may write to the log, in bytes.
const maxSaidLog = 64 << 10

// logLines writes what the agent says on its standard error to the log, which
// quotes it, up to maxSaidLog.
func logLines(r io.Reader, log *slog.Logger) {
	if log == nil {
		io.Copy(io.Discard, r)
		return
	}
	in := bufio.NewReaderSize(io.LimitReader(r, maxSaidLog), 4096)
	for {
		line, err := in.ReadSlice('\n') // a long line is logged in pieces
		if len(line) > 0 {
			log.Info("turn agent", "said", string(line))
		}
		if err != nil && err != bufio.ErrBufferFull {
			break
		}
	}
	io.Copy(io.Discard, r)
}
