package fusefs

// LimitEntries changes how long a listing may be.
func LimitEntries(n int) { maxEntries = n }
