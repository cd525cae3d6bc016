package main

import (
	"strings"
	"testing"

	"msb/protocol/agent"
)

func TestBootAndShutdown(t *testing.T) {
	image := busyboxImage(t)
	s := start(t, image, false)
	s.handshake(agent.BootstrapPayload{
		Hostname:    "box",
		User:        "dev",
		DefaultCwd:  "/home/dev",
		DefaultEnv:  []agent.EnvVar{{Key: "LANG", Value: "C.UTF-8"}},
		TmpfsMounts: []agent.TmpfsMount{{Path: "/cache"}},
	})
	ready := decode[agent.ReadyPayload](t, s.awaitType(0, agent.Ready))
	if ready.RelayLease == nil || ready.RelayLease.MaxFormat != 1 || ready.Bulk != nil {
		t.Errorf("ready: %+v", ready)
	}
	out, code := s.run(1, sh("hostname; id -un; pwd; echo $HOME $LANG; ls /; cat /proc/1/comm; grep -c /cache /proc/mounts; ls /run/msb; ls /dev; ip link show lo | grep -c UP"))
	if code != 0 {
		t.Errorf("code %d", code)
	}
	for _, want := range []string{"box\n", "dev\n", "/home/dev\n", "/home/dev C.UTF-8\n", "msb-guest\n", "tmp\n", "null\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	s.run(2, sh("echo kept >/home/dev/file"))
	s.shutdown()

	s = start(t, image, false)
	s.handshake(agent.BootstrapPayload{User: "dev"})
	if out, _ := s.run(1, sh("cat /home/dev/file")); out != "kept\n" {
		t.Errorf("after a restart the file holds %q", out)
	}
	s.shutdown()
}

// Limits of the bootstrap bind every command, and a request's own win.
func TestLimitsOfTheBootstrap(t *testing.T) {
	s := up(t, agent.BootstrapPayload{User: "dev", Rlimits: []agent.Rlimit{{Resource: "nofile", Soft: 100, Hard: 200}}})
	if out, _ := s.run(1, sh("ulimit -n; ulimit -Hn; id -u")); out != "100\n200\n1000\n" {
		t.Errorf("got %q", out)
	}
	r := sh("ulimit -n")
	r.Rlimits = []agent.Rlimit{{Resource: "nofile", Soft: 50, Hard: 60}}
	if out, _ := s.run(2, r); out != "50\n" {
		t.Errorf("got %q", out)
	}
	s.shutdown()
}

// A command that ignores SIGTERM does not keep the machine from ending, and what it wrote is on disk.
func TestShutdownWithStubbornCommands(t *testing.T) {
	image := busyboxImage(t)
	s := start(t, image, false)
	s.handshake(agent.BootstrapPayload{})
	s.send(1, agent.ExecRequest, sh("trap '' TERM HUP; echo written >/root/file; echo up; while true; do sleep 1; done"))
	s.await(0, "output", func(m message) bool { return m.t == agent.ExecStdout })
	s.shutdown()
	s = start(t, image, false)
	s.handshake(agent.BootstrapPayload{})
	if out, _ := s.run(1, sh("cat /root/file")); out != "written\n" {
		t.Errorf("the file holds %q", out)
	}
	s.shutdown()
}
