// Package warden is the privilege side of the turn agent: who runs as whom, and how a command gets to run.
//
// The wish: the agent is a user of its own (msb-turn), the commands that a model writes run as dev, and a command that
// was allowed cannot speak for the agent: not trace it, signal it, read its secret or its connection, answer for the
// host or fill in approvals. At the same time the agent's file tools must have exactly dev's rights on the workspace.
//
// msb-turn cannot become dev by itself, and must not be able to become root. So `msb-guest turn` starts as root and
// splits into three kinds of processes, all of them this one binary:
//
//   - The warden stays root. It does three things for the one peer on its socket pair: start a command as dev, freeze
//     or write out the file system, set the clock. It never sees the RPC: the connection is handed to the agent and
//     closed here. It parses nothing but short messages of the agent's. Nothing it can be asked for runs as anybody
//     but dev, so an agent that was taken over by a model's answer has gained what an allowed command has, no more.
//   - The agent becomes msb-turn before it reads a byte: no capabilities, no_new_privs, undumpable. Undumpable means
//     that /proc/PID/mem, fd, environ and the rest belong to root, and that no process of its own user can trace it;
//     other users cannot anyway. It runs no programs.
//   - A keeper is started for each command, as root. It has the command's pipes and one end of a socket pair whose
//     other end only the agent holds; when that end closes, because the command is to be killed or the agent is gone
//     in any way, the keeper kills the command, its process group and everything that descends from it: it is the
//     subreaper of all of them and, where there are control groups, has them in one of their own that the kernel kills
//     as a whole. Only then it reports the status. Being root, it cannot be signalled by the command.
//
// The file tools. A helper process as dev would do the work, but dev's commands could kill or stop it, and its
// answers would be dev's. Instead some threads of the agent take dev's file-system identity (setfsuid, setfsgid, dev's
// groups) and nothing else: the kernel checks file access by that identity, and signals and tracing by the others, which
// remain msb-turn's. What such a thread makes belongs to dev, what dev may not read it may not read, and a file system
// that dev mounts through FUSE cannot catch it, since FUSE compares all identities. Changing the identity needs
// CAP_SETUID and CAP_SETGID: the agent is started with these two, sets its threads up, drops both on all threads, and
// checks that they are gone.
//
// A command gets three pipes, the working directory that was approved (as an open folder, so that it cannot be swapped
// in between), a fixed environment, a session of its own, and no other descriptor. It has no_new_privs: were sudo or
// any other set-user-ID program to work, one allowed command could become root and with that the agent. A user who
// wants such programs has a shell.
//
// What this does not do: whoever is root in the sandbox (the user may be, in a shell) is above all of it, and command
// approval depends on the kernel of the sandbox being whole. Model access and MCP approval do not: they are enforced
// on the host.
package warden
