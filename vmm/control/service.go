package control

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"msb/vmm/runtime"
	"msb/vmm/secrets"
)

// Service serves control.sock of a sandbox beside its relay. vault is what the
// sandbox's brokers use too; guest returns the way to the guest's files.
func Service(vault *secrets.Vault, guest func(runtime.Sandbox) Guest) runtime.Service {
	var l net.Listener
	prepare := func(_ context.Context, s runtime.Sandbox) (err error) {
		l, err = Listen(s.Home.ControlSocket(s.Config.Name))
		return err
	}
	return runtime.Service{Name: "control", Prepare: prepare, Run: func(ctx context.Context, s runtime.Sandbox) error {
		if err := vault.Load(ctx); err != nil {
			s.Log.Warn("secrets", "error", err)
		}
		r := NewResources(Parts{
			VM: s.VM, CPUs: s.Config.CPUs, Disk: s.Home.DiskPath(s.Config.Name, s.Config.Engine),
			Pauser: s.Pauser, Vault: vault, Guest: guest(s), Log: s.Log,
		})
		var work sync.WaitGroup
		defer work.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		work.Go(func() { r.Run(ctx) })
		return New(r, Options{Log: s.Log, Done: func(method string, took time.Duration, err error) {
			if err != nil {
				err = errors.New(problem(err, "").Code) // the text may quote the request
			}
			s.Traffic.Done(method, took, err)
		}}).Serve(ctx, l)
	}}
}

var _ Pauser = (*runtime.Pauser)(nil)
