//go:build !linux

package fusefs

const capKillPriv = 0
