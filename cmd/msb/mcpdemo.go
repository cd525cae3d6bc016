package main

import (
	"os"

	"github.com/spf13/cobra"

	"msb/turn/mcp"
)

func newMCPDemoCmd(*app) *cobra.Command {
	return &cobra.Command{
		Use:   "mcp-demo",
		Short: "Serve a small MCP server on standard input and output",
		Long: `The MCP server of the demo profile: an issue tracker that is always the same. msb starts it by
itself; other MCP clients can use it too.`,
		Example: "  msb mcp-demo",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return mcp.Demo(cmd.Context(), os.Stdin, os.Stdout)
		},
	}
}
