package link

import (
	"context"
	"time"

	"msb/turn"
	"msb/turn/socket"
)

// SessionsOf reads the sessions of a sandbox by its turn socket.
func SessionsOf(ctx context.Context, path string) ([]turn.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := socket.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Sessions(ctx)
}
