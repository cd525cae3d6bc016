package link

import (
	"context"
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/controlclient"
	"msb/protocol/control"
)

// MetricsMsg is a look at what a sandbox uses. Only runtimes of ours tell; the
// wire has no push for it.
type MetricsMsg struct {
	Box     string
	Metrics control.Metrics
	At      time.Time
}

// metricsEvery is the time between two looks.
const metricsEvery = 2 * time.Second

// Watch looks at the use of a sandbox until ctx ends.
func Watch(ctx context.Context, box, path string, send func(tea.Msg)) {
	c := controlclient.Connect(path)
	defer c.Close()
	for {
		look, cancel := context.WithTimeout(ctx, metricsEvery)
		m, err := c.Metrics(look)
		cancel()
		if err == nil && ctx.Err() == nil {
			send(MetricsMsg{box, m, time.Now()})
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(metricsEvery):
		}
	}
}
