package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/config"
	"msb/turn/creds"
)

// Report is the outcome of Test.
type Report struct {
	Text  string // the beginning of what the model said
	Usage turnrpc.Usage
	First time.Duration // until the first word
	Total time.Duration
}

// Test asks a profile's model for one word. Its error is for the user of the
// host: it says where the key should be and what the server wrote.
func Test(ctx context.Context, m config.Model, credentials Resolver) (Report, error) {
	var report Report
	var secret creds.Secret
	if m.Credential != nil {
		var err error
		if secret, err = credentials.Resolve(ctx, m.Credential.For(m.Host())); err != nil {
			return report, fmt.Errorf("model profile %s: %w", m.Name, err)
		}
	}
	transport := newTransport()
	defer transport.CloseIdleConnections()
	began := time.Now()
	var text strings.Builder
	r := request{model: m, secret: secret, rich: true, transport: transport, log: slog.New(slog.DiscardHandler)}
	req := turnrpc.ProviderRequest{Messages: []turnrpc.Message{{Role: turnrpc.RoleUser, Content: "Answer with the single word: ready"}}}
	err := r.do(ctx, req, func(e turnrpc.ProviderEvent) error {
		if report.First == 0 {
			report.First = time.Since(began)
		}
		if text.Len() < 1024 {
			text.WriteString(e.Text)
		}
		if e.Usage != nil {
			report.Usage = *e.Usage
		}
		return nil
	})
	report.Text, report.Total = text.String(), time.Since(began)
	var f *Failure
	if errors.As(err, &f) {
		return report, fmt.Errorf("model profile %s: %s", m.Name, f.Explain())
	}
	return report, err
}
