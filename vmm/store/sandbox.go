package store

import "errors"

// ErrNotFound is wrapped when a sandbox does not exist.
var ErrNotFound = errors.New("no such sandbox")

// ErrExists is wrapped when a sandbox of that name exists already.
var ErrExists = errors.New("sandbox exists already")

// ErrLocked is wrapped when another process runs the sandbox.
var ErrLocked = errors.New("another process holds the sandbox")
