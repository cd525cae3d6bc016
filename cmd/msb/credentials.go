package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"msb/turn/config"
	"msb/turn/creds"
)

func newCredsCmd(app *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "creds",
		Short:   "Keys that msb keeps for models and MCP servers",
		Example: "  msb creds set openai\n  pass show api | msb creds set tracker\n  msb creds ls",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCredsSetCmd(app), newCredsLsCmd(app), newCredsRmCmd(app))
	return cmd
}

func (a *app) credentials() (*creds.Store, error) {
	h, err := a.home()
	if err != nil {
		return nil, err
	}
	return creds.Open(config.CredentialsDir(h.Config)), nil
}

func newCredsSetCmd(app *app) *cobra.Command {
	var source string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Keep a key, in the keyring or a file of mode 0600",
		Long: `Read a key without showing it, or from standard input, and keep it in your keyring, or where there
is none in a file of mode 0600. It never stands on the command line and is never shown.`,
		Example: "  msb creds set openai\n  pass show api | msb creds set tracker --source file",
		Args:    cobra.ExactArgs(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			if err := creds.CheckName(args[0]); err != nil {
				return &usageError{err}
			}
			if source != "" && source != creds.SourceKeyring && source != creds.SourceFile {
				return &usageError{fmt.Errorf("--source %q: there are keyring and file", source)}
			}
			s, err := app.credentials()
			if err != nil {
				return err
			}
			secret, err := app.readSecret("key for " + args[0])
			if err != nil {
				return err
			}
			used, err := s.Set(ctx, source, args[0], secret)
			if err != nil {
				return err
			}
			fmt.Fprintf(app.io.Err, "kept; profiles name it as %s:%s\n", used, args[0])
			return nil
		}),
	}
	cmd.Flags().StringVar(&source, "source", "", "keyring or file (default: the keyring if there is one)")
	_ = cmd.RegisterFlagCompletionFunc("source", cobra.FixedCompletions([]string{creds.SourceKeyring, creds.SourceFile}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// readSecret reads a secret from the terminal without showing it, or from standard input, without the line feed at its
// end.
func (a *app) readSecret(what string) (creds.Secret, error) {
	var b []byte
	var err error
	if a.io.InTTY() {
		fmt.Fprintf(a.io.Err, "%s: ", what)
		b, err = term.ReadPassword(int(a.io.InFile().Fd()))
		fmt.Fprintln(a.io.Err)
	} else {
		b, err = io.ReadAll(io.LimitReader(a.io.In, creds.MaxSize+1))
	}
	if err != nil {
		return creds.Secret{}, fmt.Errorf("read the %s: %w", what, err)
	}
	text := strings.TrimRight(string(b), "\r\n")
	switch {
	case text == "":
		return creds.Secret{}, &usageError{errors.New("the key is empty")}
	case len(text) > creds.MaxSize:
		return creds.Secret{}, &usageError{fmt.Errorf("a key has at most %d bytes", creds.MaxSize)}
	}
	return creds.NewSecret(text), nil
}

func newCredsLsCmd(app *app) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the keys that msb keeps; no key is shown",
		Example: "  msb creds ls",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			asJSON, err := l.asJSON()
			if err != nil {
				return err
			}
			s, err := app.credentials()
			if err != nil {
				return err
			}
			list, err := s.List()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(app.io.Out, append([]creds.Stored{}, list...))
			}
			var rows [][]string
			for _, c := range list {
				kind := "key"
				if c.OAuth {
					kind = "login"
				}
				rows = append(rows, []string{c.Name, c.Source, kind})
			}
			return writeTable(app.io.Out, []string{"NAME", "WHERE", "WHAT"}, rows)
		},
	}
	l.flags(cmd, "")
	return cmd
}

func newCredsRmCmd(app *app) *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME",
		Short:   "Remove a key that msb keeps",
		Example: "  msb creds rm openai",
		Args:    cobra.ExactArgs(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			s, err := app.credentials()
			if err != nil {
				return err
			}
			return s.Remove(ctx, args[0])
		}),
	}
}
