//go:build race

package files

// raceDetector is on: it makes sync.Pool forget things at random.
const raceDetector = true
