package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"msb/vmm"
	"msb/vmm/store"
)

// selection is the sandboxes that a command works on: by name, or by label.
type selection struct {
	labels []string
	quiet  bool
	stock  bool // sandboxes of a stock installation too, by names that ours could not have
}

func (s *selection) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&s.labels, "label", nil, "all sandboxes with this label, KEY or KEY=VALUE (repeatable)")
	cmd.Flags().BoolVarP(&s.quiet, "quiet", "q", false, "say nothing but errors")
}

// names returns the sandboxes that args and labels name; none at all is a usage error.
func (s *selection) names(ctx context.Context, h *vmm.Host, args []string) ([]string, error) {
	for _, n := range args {
		if err := store.ValidateName(n); err != nil && !s.stock {
			return nil, &usageError{err}
		}
	}
	if len(s.labels) == 0 {
		if len(args) == 0 {
			return nil, &usageError{errors.New("which sandbox? give one or more NAMEs, or --label")}
		}
		return args, nil
	}
	all, err := h.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, sb := range all {
		if hasLabels(sb.Labels, s.labels) {
			args = append(args, sb.Name)
		}
	}
	return args, nil
}

// each calls do for every selected sandbox, goes on after a failure, and returns all failures.
func (s *selection) each(ctx context.Context, h *vmm.Host, args []string, do func(name string) error) error {
	names, err := s.names(ctx, h, args)
	if err != nil {
		return err
	}
	var failed []error
	for _, n := range names {
		if err := do(n); err != nil {
			if errors.Is(err, store.ErrNotFound) {
				err = unknownSandbox(n)
			}
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}

// generatedName is a name for a sandbox that the user gave none.
func generatedName(prefix string, random func() string) string {
	return fmt.Sprintf("%s-%.8s", prefix, random())
}
