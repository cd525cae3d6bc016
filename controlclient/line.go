package controlclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"msb/protocol/control"
)

// maxReply bounds a JSON reply by memory, not by the protocol.
const maxReply = 64 << 20

// LineReply is a JSON reply: what this package understands of it, and the line
// as it came.
type LineReply struct {
	control.Reply
	Raw []byte
}

// exchangeLine sends one JSON request on a fresh connection and reads the
// reply. A negative reply is a *ReplyError beside the reply.
func exchangeLine(ctx context.Context, conn net.Conn, request control.Request, limit int) (LineReply, error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := control.AppendLine(nil, request)
	if err != nil {
		return LineReply{}, err
	}
	cause := func(err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	if n, err := conn.Write(line); err != nil && n == 0 {
		return LineReply{}, fmt.Errorf("%s: not sent: %w", request.Op, cause(err))
	}
	// A request that was cut short may still be read as one that ends without a newline; and a runtime may answer before
	// it has read all.
	raw, err := readLine(conn, limit)
	if err == nil {
		var reply control.Reply
		if reply, err = control.ParseReply(raw); err == nil {
			got := LineReply{Reply: reply, Raw: raw}
			if !reply.OK {
				return got, &ReplyError{Op: request.Op, Message: reply.Error, Raw: raw}
			}
			return got, nil
		}
	}
	return LineReply{Raw: raw}, &OutcomeUnknownError{Op: request.Op, Cause: cause(err)}
}

func readLine(r io.Reader, limit int) ([]byte, error) {
	b, err := bufio.NewReader(io.LimitReader(r, int64(limit)+1)).ReadBytes('\n')
	switch {
	case len(b) > limit:
		return nil, fmt.Errorf("a reply of more than %d bytes", limit)
	case errors.Is(err, io.EOF) && len(bytes.TrimSpace(b)) > 0:
		return b, nil
	case errors.Is(err, io.EOF):
		return nil, errors.New("the connection was closed without a reply")
	}
	return b, err
}
