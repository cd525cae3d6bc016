//go:build race

package agentclient

// raceEnabled: pools forget on purpose under the race detector.
const raceEnabled = true
