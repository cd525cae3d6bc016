package fusefs

// LimitEntries changes how long a listing may be.
func LimitEntries(n int) { maxEntries = n }

// PathsOnly makes mounts of this process use the contract's operations only.
func PathsOnly() { pathsOnly = true }
