package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"msb/vmm/control"
	"msb/vmm/engine"
	"msb/vmm/image"
	"msb/vmm/runtime"
	"msb/vmm/secrets"
	"msb/vmm/store"
)

// newRuntimeCmd is the background process of one sandbox; create and start run it.
func newRuntimeCmd(app *app) *cobra.Command {
	return &cobra.Command{
		Use:               "runtime NAME",
		Short:             "Run a sandbox until its machine ends",
		Hidden:            true,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := app.home()
			if err != nil {
				return err
			}
			vault := secrets.New(func() ([]secrets.Declaration, error) {
				c, err := h.Load(args[0])
				return c.Secrets, err
			})
			return runtime.Run(cmd.Context(), h, args[0], runtime.Deps{
				Machine:  app.machine,
				Services: []runtime.Service{control.Service(vault, guestOf), turnService(vault), shellService(), trafficService()},
			})
		},
	}
}

// machine says which engine runs a sandbox, and with what kernel and guest agent.
func (a *app) machine(ctx context.Context, c store.Config) (engine.Engine, engine.Spec, error) {
	e, err := engineByName(c.Engine)
	if err != nil {
		return nil, engine.Spec{}, err
	}
	if err := a.checkDisk(c); err != nil {
		return nil, engine.Spec{}, err
	}
	h, err := a.home()
	if err != nil {
		return nil, engine.Spec{}, err
	}
	spec := engine.Spec{CacheDir: h.CacheDir()}
	if spec.Guest, err = a.guest(); err != nil {
		return nil, spec, err
	}
	if !e.Capabilities().NeedsKernel {
		return e, spec, nil
	}
	lib, err := a.library()
	if err != nil {
		return nil, spec, err
	}
	var k image.Kernel
	if c.Kernel != "" {
		k, err = lib.UseKernel(ctx, c.Kernel, c.Modules)
	} else {
		k, err = lib.Kernel()
	}
	if err != nil {
		return nil, spec, fmt.Errorf("kernel: %w", err)
	}
	if spec.Initrd, err = lib.Initramfs(ctx, k, spec.Guest); err != nil {
		return nil, spec, err
	}
	spec.Kernel = k.Boot
	return e, spec, nil
}
