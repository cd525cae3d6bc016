package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"msb/turn/config"
	"msb/turn/creds"
)

// What the commands for models and for MCP servers have in common: both are lists of named things in the settings file.

// settings reads the settings file.
func (a *app) settings() (*config.Config, string, error) {
	h, err := a.home()
	if err != nil {
		return nil, "", err
	}
	c, err := config.Load(h.Config)
	return c, h.Config, err
}

// completeSettings completes the first argument with names from the settings.
func (a *app) completeSettings(names func(c *config.Config) []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		c, _, err := a.settings()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []string
		for _, n := range names(c) {
			if strings.HasPrefix(n, begin) {
				found = append(found, n)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// newSettingsRmCmd takes one thing out of the settings.
func newSettingsRmCmd(app *app, what, example string, complete cobra.CompletionFunc, remove func(path, name string) error) *cobra.Command {
	return &cobra.Command{
		Use:               "rm NAME",
		Short:             "Take " + what + " out of the settings",
		Example:           example,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: complete,
		RunE: func(_ *cobra.Command, args []string) error {
			h, err := app.home()
			if err != nil {
				return err
			}
			return remove(h.Config, args[0])
		},
	}
}

// parseKey reads SOURCE:PLACE; "" is no key.
func parseKey(s string) (*creds.Ref, error) {
	if s == "" {
		return nil, nil
	}
	source, place, ok := strings.Cut(s, ":")
	r := creds.Ref{Source: source, Name: place}
	if source == creds.SourceCommand {
		r.Name, r.Command = "", strings.Fields(place)
	}
	err := r.Check()
	if !ok {
		// It may be the key itself: it is not repeated.
		err = errors.New("where is the key? give env:VARIABLE, keyring:NAME, file:PATH or command:PROGRAM, never the key itself")
	}
	if err != nil {
		return nil, &usageError{err}
	}
	return &r, nil
}

// pairs reads KEY=VALUE flags.
func pairs(flag string, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	m := make(map[string]string)
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if _, twice := m[k]; !ok || k == "" || twice {
			return nil, &usageError{fmt.Errorf("%s %.60q: give NAME=VALUE, each name once", flag, kv)}
		}
		m[k] = v
	}
	return m, nil
}
