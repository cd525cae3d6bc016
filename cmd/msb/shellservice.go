package main

import (
	"context"
	"net"

	"msb/agentclient"
	"msb/vmm/runtime"
	"msb/vmm/shells"
	"msb/vmm/traffic"
)

// shellService keeps the shells of a sandbox in its runtime's process and serves them at shells.sock.
func shellService() runtime.Service {
	var l net.Listener
	prepare := func(_ context.Context, s runtime.Sandbox) (err error) {
		l, err = shells.Listen(s.Home.ShellsSocket(s.Config.Name))
		return err
	}
	return runtime.Service{Name: "shells", Prepare: prepare, Run: func(ctx context.Context, s runtime.Sandbox) error {
		k := shells.New(shellsOverAgent(func(ctx context.Context) (*agentclient.Client, error) {
			return agentclient.Dial(ctx, s.Home.AgentSocket(s.Config.Name))
		}), s.Log)
		defer context.AfterFunc(ctx, k.Close)()
		defer k.Close()
		return k.Serve(l)
	}}
}

// trafficService tells at traffic.sock what crosses the protocols of a sandbox.
func trafficService() runtime.Service {
	var l net.Listener
	prepare := func(_ context.Context, s runtime.Sandbox) (err error) {
		l, err = traffic.Listen(s.Home.TrafficSocket(s.Config.Name))
		return err
	}
	return runtime.Service{Name: "traffic", Prepare: prepare, Run: func(ctx context.Context, s runtime.Sandbox) error {
		return s.Traffic.Serve(ctx, l)
	}}
}
