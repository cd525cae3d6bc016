package tui

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"msb/tui/link"
	"msb/turn"
	"msb/turn/config"
	"msb/turn/creds"
	"msb/vmm"
	"msb/vmm/shells"
	"msb/vmm/store"
	"msb/vmm/traffic"
)

// liar is settings whose every word is foreign, and whose servers answer with it.
type liar struct {
	*ledger
	words []string
}

func (l liar) TestModel(_ context.Context, name string) (string, error) { return name, nil }
func (l liar) TestServer(_ context.Context, name string) (string, error) {
	return "", errors.New(name + strings.Join(l.words, "\n"))
}
func (l liar) Login(_ context.Context, name string, show func(string)) error {
	show(name + strings.Join(l.words, "\n"))
	return nil
}

// What is foreign in the lists: settings, sandboxes, shells, crossings, the audit
// log, forms and questions.
func TestSpoofingLists(t *testing.T) {
	words := corpus()
	audit := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(audit, []byte(strings.Join(words, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, z := range sizes {
		t.Run(fmt.Sprintf("%dx%d", z[0], z[1]), func(t *testing.T) {
			l := newLedger()
			for _, w := range words {
				ref := &creds.Ref{Source: creds.SourceFile, Name: w}
				l.state.Models = append(l.state.Models, config.Model{Name: w, Provider: w, Model: w, BaseURL: w, Credential: ref})
				l.state.Servers = append(l.state.Servers, config.Server{Name: w, URL: w, Credential: ref}, config.Server{Name: w, Command: w, Args: []string{w}})
				l.keys[w] = w
			}
			s := openWith(t, z[0], z[1], func(o *Options) {
				o.Settings = liar{l, words}
				o.Audit = func(vmm.Sandbox) string { return audit }
				o.Images = func() []string { return words }
				o.Create = func(context.Context, NewBox, func(string)) error { return nil }
			})
			s.until("Show me around")

			s.press("\x1b6")
			s.until("models")
			rows := 0
			s.wait("the settings", func() bool { s.inside(func(a *App) { rows = len(a.settings.rows) }); return rows > 4*len(words) })
			for i := range rows {
				s.press("down")
				if i%5 == 0 {
					s.shape()
				}
			}
			s.press("g", "down", "d")
			s.until("[ n No ]")
			s.shape()
			s.press("esc")
			s.gone("[ n No ]")
			for range 2 + len(words) {
				s.press("down")
			}
			s.press("o") // a login shows an address
			s.until("log in to")
			s.shape()
			s.press("q", "t") // a server that fails
			s.until("not done")
			for range 5 {
				s.press(" ")
				s.shape()
			}
			s.press("q")
			s.gone("not done")

			s.press("\x1b4", "v")
			s.until("protocols:")
			for _, w := range words {
				s.inside(func(a *App) {
					a.traffic.cross(traffic.Piece{Lost: 1, List: []traffic.Crossing{{Wire: traffic.Control, Method: w, Error: w}, {Wire: w, Method: w}}})
				})
				if !strings.Contains(w, "evil") { // which has no place in the footer of the other tests
					s.p.Send(sayMsg(w))
				}
				s.shape()
			}
			s.press("a")
			s.until("audit log")
			for range 5 {
				s.press(" ")
				s.shape()
			}
			s.press("q")

			var list []vmm.Sandbox
			for _, w := range words {
				list = append(list, vmm.Sandbox{Name: "x" + w, State: store.Status(w), Engine: w, Accel: w, Image: w, User: w, Reason: w, DiskError: w, AgentVersion: w, Directory: w,
					Created: time.Unix(0, 0), Mounts: []store.Mount{{Dir: w, GuestPath: w}}})
			}
			s.rig.mu.Lock()
			s.rig.others = list
			s.rig.mu.Unlock()
			s.press("\x1b5")
			s.p.Send(refreshMsg{})
			s.wait("the list", func() bool { s.inside(func(a *App) { rows = len(a.boxes) }); return rows == len(list)+2 })
			for range list {
				s.press("down")
				s.inside(func(a *App) {
					for _, sb := range list {
						a.boxSessions[sb.Name] = []turn.Info{{Record: turn.Record{ID: "12345678", Name: sb.Name}, State: sb.Name}}
					}
				})
				s.shape()
			}
			s.press("d")
			s.wait("the question", func() (asks bool) { s.inside(func(a *App) { asks = a.dialog != nil }); return asks })
			s.shape()
			s.press("esc", "n", "\t")
			s.until("A new sandbox")
			for range words {
				s.press("\t ", "\x1b[Z")
				s.shape()
			}
			s.press("esc")
			s.gone("A new sandbox")

			var kept []shells.Info
			for i, w := range words {
				kept = append(kept, shells.Info{ID: uint32(i + 1), Title: w, User: w})
			}
			s.p.Send(link.ShellsMsg{Box: "demo", List: kept})
			s.press("\x1b2")
			s.wait("the shells", func() (shown bool) {
				s.inside(func(a *App) { shown = a.tab == tabShell && len(a.shells) > 0 })
				return shown
			})
			s.shape()
			s.clean()
		})
	}
}
