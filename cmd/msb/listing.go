package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"msb/cmd/msb/terminal"
)

// listing is how a command that lists something writes it: a table for people or JSON for programs.
type listing struct {
	format string
	json   bool
	quiet  bool
}

func (l *listing) flags(cmd *cobra.Command, quiet string) {
	cmd.Flags().StringVar(&l.format, "format", "table", "table or json")
	cmd.Flags().BoolVar(&l.json, "json", false, "the same as --format json")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	if quiet != "" {
		cmd.Flags().BoolVarP(&l.quiet, "quiet", "q", false, quiet)
	}
}

// asJSON says whether JSON was asked for, and refuses a format that does not exist.
func (l *listing) asJSON() (bool, error) {
	switch l.format {
	case "json":
		return true, nil
	case "", "table":
		return l.json, nil
	}
	return false, &usageError{fmt.Errorf("--format %q: there are table and json", l.format)}
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// writeTable writes rows in aligned columns, a header first.
func writeTable(w io.Writer, header []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, terminal.Line(cell))
		}
		fmt.Fprint(t, "\n")
	}
	return t.Flush()
}
