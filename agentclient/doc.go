// Package agentclient is the host's client of the agent protocol: handshake,
// generation gate, commands, files and TCP streams of one sandbox, over the
// socket that its runtime serves.
//
// A Client always drains its socket, whatever its users do, because a relay
// drops a client that makes no read progress: what a command prints is spooled
// to an unlinked file while nobody reads it, and raw bulk is held back by its
// credit window.
package agentclient
