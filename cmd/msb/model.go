package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/turn/config"
	"msb/turn/creds"
	"msb/turn/provider"
	"msb/turn/visible"
)

func newModelCmd(app *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Models that agents may use",
		Long: `Model profiles are in the settings file. Agents learn a profile's name, the provider's label and
the model's name, and nothing else: addresses and keys stay on this host.`,
		Example: "  msb model ls\n  msb model add local --provider ollama --model qwen3 --base-url http://localhost:11434/v1 --loopback\n  msb model test local",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newModelLsCmd(app), newModelAddCmd(app), newSettingsRmCmd(app, "a model profile", "  msb model rm local", app.completeModels(), config.RemoveModel), newModelTestCmd(app))
	return cmd
}

func newModelLsCmd(app *app) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the model profiles, the default one first",
		Example: "  msb model ls\n  msb model ls --json",
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
			list := []modelRow{}
			for _, name := range c.ModelNames() {
				m, err := c.Model(name)
				if err != nil {
					return err
				}
				list = append(list, newModelRow(m))
			}
			if asJSON {
				return writeJSON(app.io.Out, list)
			}
			var rows [][]string
			for _, r := range list {
				rows = append(rows, []string{r.Name, r.Provider, r.Model, r.window(), r.price(), r.BaseURL, r.Credential})
			}
			return writeTable(app.io.Out, []string{"NAME", "PROVIDER", "MODEL", "WINDOW", "PRICE", "BASE URL", "KEY"}, rows)
		},
	}
	l.flags(cmd, "")
	return cmd
}

// modelRow is a profile in JSON.
type modelRow struct {
	Name          string    `json:"name"`
	Provider      string    `json:"provider"`
	Model         string    `json:"model"`
	API           string    `json:"api,omitempty"`
	BaseURL       string    `json:"base_url,omitempty"`
	Credential    string    `json:"credential,omitempty"` // where the key is
	ContextWindow int64     `json:"context_window,omitempty"`
	MaxTokens     int64     `json:"max_tokens,omitempty"`
	Price         *rowPrice `json:"price,omitempty"`
}

// rowPrice is for a million tokens.
type rowPrice struct {
	Input  float64 `json:"input"`
	Output float64 `json:"output"`
}

func newModelRow(m config.Model) modelRow {
	r := modelRow{Name: m.Name, Provider: m.Provider, Model: m.Model, API: m.API, BaseURL: m.BaseURL,
		ContextWindow: m.ContextWindow, MaxTokens: m.MaxTokens}
	if m.Credential != nil {
		r.Credential = m.Credential.String()
	}
	if m.Price != nil {
		r.Price = &rowPrice{m.Price.Input, m.Price.Output}
	}
	return r
}

func (r modelRow) window() string {
	switch {
	case r.ContextWindow == 0:
		return ""
	case r.ContextWindow < 10_000:
		return strconv.FormatInt(r.ContextWindow, 10)
	}
	return strconv.FormatInt(r.ContextWindow/1000, 10) + "k"
}

func (r modelRow) price() string {
	if r.Price == nil {
		return ""
	}
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	return number(r.Price.Input) + " in, " + number(r.Price.Output) + " out"
}

// completeModels completes a model profile.
func (a *app) completeModels() cobra.CompletionFunc {
	return a.completeSettings((*config.Config).ModelNames)
}

func newModelAddCmd(app *app) *cobra.Command {
	var m config.Model
	var key string
	var price config.Price
	cmd := &cobra.Command{
		Use:   "add NAME --provider P --model M",
		Short: "Add a model profile to the settings",
		Long: `Add a profile. Providers openai, anthropic and xai have addresses of their own; any other name is a
label for a server that speaks OpenAI's chat completions at --base-url. The key is not given here but
where it is: env:VARIABLE, keyring:NAME, file:PATH (mode 0600) or command:PROGRAM ARGUMENTS.`,
		Example: `  msb model add claude --provider anthropic --model claude-sonnet-4-5 --key env:ANTHROPIC_API_KEY
  msb creds set openai && msb model add gpt --provider openai --model gpt-5 --key keyring:openai
  msb model add local --provider ollama --model qwen3 --base-url http://localhost:11434/v1 --loopback`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			h, err := app.home()
			if err != nil {
				return err
			}
			m.Name = args[0]
			if m.Credential, err = parseKey(key); err != nil {
				return err
			}
			if price != (config.Price{}) {
				m.Price = &price
			}
			if err := m.Check(); err != nil {
				return &usageError{err}
			}
			if err := config.AddModel(h.Config, m); err != nil {
				return err
			}
			fmt.Fprintf(app.io.Err, "added to %s; `msb model test %s` asks it for a word\n", tilde(h.Config), m.Name)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&m.Provider, "provider", "", "openai, anthropic, xai, or a label of your own")
	f.StringVar(&m.Model, "model", "", "the model's name at the provider")
	f.StringVar(&m.BaseURL, "base-url", "", "address of the server")
	f.StringVar(&m.API, "api", "", "chat or messages (default: by the provider)")
	f.StringVar(&key, "key", "", "where the key is")
	f.BoolVar(&m.Loopback, "loopback", false, "allow an address on this machine, also with http")
	f.Int64Var(&m.MaxTokens, "max-tokens", 0, "longest answer, in tokens")
	f.Int64Var(&m.ContextWindow, "context-window", 0, "what the model takes, answer included, in tokens (default: by the provider)")
	f.Float64Var(&price.Input, "price-input", 0, "price of a million tokens in, for the cost that is shown")
	f.Float64Var(&price.Output, "price-output", 0, "price of a million tokens out")
	return cmd
}

func newModelTestCmd(app *app) *cobra.Command {
	return &cobra.Command{
		Use:               "test [NAME]",
		Short:             "Ask a model for one word",
		Example:           "  msb model test\n  msb model test local",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: app.completeModels(),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			c, path, err := app.settings()
			if err != nil {
				return err
			}
			m, err := c.Model(firstArg(args))
			if err != nil {
				return err
			}
			if c.Offline && !m.Scripted() {
				return fmt.Errorf("%s says offline: true", tilde(path))
			}
			r, err := provider.Test(ctx, m, creds.Open(config.CredentialsDir(path)))
			if err != nil {
				return err
			}
			fmt.Fprintf(app.io.Out, "%s answers: %s\n", m.Name, visible.Text(strings.TrimSpace(r.Text)))
			fmt.Fprintf(app.io.Out, "first word after %s, %d tokens in, %d out\n", progress.Seconds(r.First), r.Usage.InputTokens, r.Usage.OutputTokens)
			return nil
		}),
	}
}
