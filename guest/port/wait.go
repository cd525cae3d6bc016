package port

import (
	"sync"
	"time"
)

// WaitAtMost waits for wg, but no longer than d: there are system calls that do not return.
func WaitAtMost(wg *sync.WaitGroup, d time.Duration) {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	grace := time.NewTimer(d)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}
