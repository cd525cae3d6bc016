package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"msb/turn/config"
	"msb/turn/creds"
	"msb/turn/mcp"
	"msb/turn/visible"
)

func newMCPCmd(app *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "MCP servers whose tools agents may use",
		Long: `MCP servers are in the settings file. msb talks to them on this host, with tokens that no sandbox
sees, and asks you about every call unless the policy of the tool says otherwise.`,
		Example: "  msb mcp add tracker https://mcp.example.com/mcp\n  msb mcp login tracker\n  msb mcp test tracker",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMCPAddCmd(app), newMCPLsCmd(app), newSettingsRmCmd(app, "an MCP server", "  msb mcp rm tracker", app.completeServers(), config.RemoveServer), newMCPLoginCmd(app), newMCPTestCmd(app))
	return cmd
}

// completeServers completes an MCP server.
func (a *app) completeServers() cobra.CompletionFunc {
	return a.completeSettings(func(c *config.Config) []string {
		var names []string
		for _, s := range c.MCPServers {
			names = append(names, s.Name)
		}
		return names
	})
}

func newMCPAddCmd(app *app) *cobra.Command {
	var s config.Server
	var key string
	var env, policy []string
	cmd := &cobra.Command{
		Use:   "add NAME URL | add NAME -- PROGRAM [ARG...]",
		Short: "Add an MCP server to the settings",
		Long: `Add a server at a URL (Streamable HTTP), or a program of this host that speaks MCP on its standard
streams. The program gets the environment of --env and nothing else of yours.`,
		Example: `  msb mcp add tracker https://mcp.example.com/mcp --key keyring:tracker
  msb mcp add files --tool read --policy read=allow -- npx -y some-mcp-server /data`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := app.home()
			if err != nil {
				return err
			}
			s.Name = args[0]
			if cmd.ArgsLenAtDash() == 1 {
				s.Command, s.Args = args[1], args[2:]
			} else {
				if len(args) != 2 || cmd.ArgsLenAtDash() >= 0 {
					return &usageError{errors.New("give one URL, or -- and a program")}
				}
				s.URL = args[1]
			}
			if s.Credential, err = parseKey(key); err != nil {
				return err
			}
			if s.Env, err = pairs("--env", env); err != nil {
				return err
			}
			if s.Policy, err = pairs("--policy", policy); err != nil {
				return err
			}
			if err := s.Check(); err != nil {
				return &usageError{err}
			}
			if err := config.AddServer(h.Config, s); err != nil {
				return err
			}
			fmt.Fprintf(app.io.Err, "added to %s; `msb mcp test %s` lists its tools\n", tilde(h.Config), s.Name)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&key, "key", "", "where the bearer token is: env:VARIABLE, keyring:NAME, file:PATH or command:PROGRAM")
	f.BoolVar(&s.Loopback, "loopback", false, "allow a URL on this machine, also with http")
	f.StringArrayVar(&s.Tools, "tool", nil, "a tool to use; without, all (repeatable)")
	f.StringArrayVar(&policy, "policy", nil, "TOOL=ask|allow|deny, * for the rest (repeatable; default ask)")
	f.StringArrayVar(&env, "env", nil, "NAME=VALUE for the program (repeatable)")
	f.StringVar(&s.Dir, "dir", "", "working directory of the program")
	return cmd
}

func newMCPLsCmd(app *app) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the MCP servers",
		Example: "  msb mcp ls\n  msb mcp ls --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			asJSON, err := l.asJSON()
			if err != nil {
				return err
			}
			c, _, err := app.settings()
			if err != nil {
				return err
			}
			type row struct {
				Name   string            `json:"name"`
				Where  string            `json:"where"`
				Key    string            `json:"credential,omitempty"`
				Tools  []string          `json:"tools,omitempty"`
				Policy map[string]string `json:"policy,omitempty"`
			}
			list := []row{}
			for _, s := range c.MCPServers {
				r := row{Name: s.Name, Where: s.URL, Tools: s.Tools, Policy: s.Policy}
				switch {
				case s.Builtin():
					r.Where = "built in"
				case s.URL == "":
					r.Where = strings.Join(append([]string{s.Command}, s.Args...), " ")
				}
				if s.Credential != nil {
					r.Key = s.Credential.String()
				}
				list = append(list, r)
			}
			if asJSON {
				return writeJSON(app.io.Out, list)
			}
			var rows [][]string
			for _, r := range list {
				tools := "all"
				if len(r.Tools) > 0 {
					tools = strings.Join(r.Tools, " ")
				}
				rows = append(rows, []string{r.Name, r.Where, r.Key, tools})
			}
			return writeTable(app.io.Out, []string{"NAME", "WHERE", "KEY", "TOOLS"}, rows)
		},
	}
	l.flags(cmd, "")
	return cmd
}

func newMCPLoginCmd(app *app) *cobra.Command {
	return &cobra.Command{
		Use:   "login NAME",
		Short: "Log in at an MCP server with your browser",
		Long: `Log in with OAuth. The address to open is shown, and opened if there is a browser; the tokens are
kept in a file of mode 0600 and renewed by themselves.`,
		Example:           "  msb mcp login tracker",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeServers(),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			c, path, err := app.settings()
			if err != nil {
				return err
			}
			s, err := c.Server(args[0])
			if err != nil {
				return err
			}
			if err := mcp.Login(ctx, s, creds.Open(config.CredentialsDir(path)), app.openBrowser); err != nil {
				return err
			}
			fmt.Fprintf(app.io.Err, "logged in at %s\n", s.Name)
			return nil
		}),
	}
}

// openBrowser shows an address and opens it where that is possible.
func (a *app) openBrowser(url string) error {
	fmt.Fprintf(a.io.Err, "open this address to log in:\n  %s\n", visible.Text(url))
	startBrowser(url)
	return nil
}

// startBrowser opens an address where there is a desktop.
func startBrowser(url string) {
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	cmd := exec.Command("xdg-open", url)
	if cmd.Start() == nil {
		go cmd.Wait() // it lives as long as it likes; the address is on the screen too
	}
}

func newMCPTestCmd(app *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "test NAME",
		Short:             "Connect to an MCP server and list its tools",
		Example:           "  msb mcp test tracker\n  msb mcp test demo",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeServers(),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			c, path, err := app.settings()
			if err != nil {
				return err
			}
			s, err := c.Server(args[0])
			if err != nil {
				return err
			}
			b := mcp.New(mcp.Options{
				Servers:     func() ([]config.Server, error) { return []config.Server{s}, nil },
				Offline:     func() bool { return c.Offline },
				Credentials: creds.Open(config.CredentialsDir(path)), Log: slog.New(slog.DiscardHandler),
			})
			defer b.Close()
			if _, err := b.List(ctx); err != nil {
				return err
			}
			for _, st := range b.Status() {
				if st.Err != nil {
					return fmt.Errorf("MCP server %s: %w", s.Name, st.Err)
				}
				if err := app.showTools(st, asJSON); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "the tools as JSON, with their schemas")
	return cmd
}

func (a *app) showTools(st mcp.Status, asJSON bool) error {
	if asJSON {
		return writeJSON(a.io.Out, append([]mcp.Tool{}, st.Tools...))
	}
	var rows [][]string
	for _, t := range st.Tools {
		what, _, _ := strings.Cut(t.Description, "\n")
		rows = append(rows, []string{visible.Text(t.Name), st.Server.PolicyOf(t.Name), visible.Text(t.Claim), visible.Text(what)})
	}
	if err := writeTable(a.io.Out, []string{"TOOL", "POLICY", "ITS CLAIM", "WHAT IT SAYS"}, rows); err != nil {
		return err
	}
	if st.Hidden > 0 {
		fmt.Fprintf(a.io.Out, "%d more are left out by the settings, or cannot be used\n", st.Hidden)
	}
	return nil
}
