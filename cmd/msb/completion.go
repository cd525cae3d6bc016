package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newCompletionCmd(app *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a completion script for bash, zsh, fish or powershell",
		Long: `Print a script that completes commands, flags, and the names of sandboxes and images.

bash:  source <(msb completion bash)          or write it to /etc/bash_completion.d/msb
zsh:   msb completion zsh > "${fpath[1]}/_msb"
fish:  msb completion fish > ~/.config/fish/completions/msb.fish`,
		Example:   "  source <(msb completion bash)",
		Args:      cobra.ExactArgs(1),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), app.io.Out
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(out)
			}
			return &usageError{fmt.Errorf("no completion for shell %q: choose bash, zsh, fish or powershell", args[0])}
		},
	}
}
