package agent

// ExecRequestPayload starts a process. Only Cmd is required. Env entries are
// "K=V". Rows and Cols matter with TTY only.
type ExecRequestPayload struct {
	Cmd     string   `cbor:"cmd"`
	Args    []string `cbor:"args" wire:"optional"`
	Env     []string `cbor:"env" wire:"optional"`
	Cwd     *string  `cbor:"cwd"`
	User    *string  `cbor:"user"` // NAME|UID[:GROUP|GID]
	TTY     bool     `cbor:"tty" wire:"optional"`
	Rows    uint16   `cbor:"rows" wire:"optional"`
	Cols    uint16   `cbor:"cols" wire:"optional"`
	Rlimits []Rlimit `cbor:"rlimits" wire:"optional"`
}

func (r *ExecRequestPayload) SetDefaults() { r.Rows, r.Cols = 24, 80 }

// Rlimit is one resource limit; names as in setrlimit without RLIMIT_, lower case.
type Rlimit struct {
	Resource string `cbor:"resource"`
	Soft     uint64 `cbor:"soft"`
	Hard     uint64 `cbor:"hard"`
}

// ExecStartedPayload carries the guest's process id.
type ExecStartedPayload struct {
	PID uint32 `cbor:"pid"`
}

// ExecExitedPayload is the end of a process: 0-255, or -1 for a signal.
type ExecExitedPayload struct {
	Code int32 `cbor:"code"`
}

// ExecStdinErrorPayload reports a write to a closed stdin. Not terminal.
type ExecStdinErrorPayload struct {
	Errno     *int32  `cbor:"errno"`
	ErrnoName *string `cbor:"errno_name"`
	Message   string  `cbor:"message"`
}

// Kinds of exec.failed.
const (
	ExecNotFound         = "not_found"
	ExecPermissionDenied = "permission_denied"
	ExecNotExecutable    = "not_executable"
	ExecBadCwd           = "bad_cwd"
	ExecBadArgs          = "bad_args"
	ExecResourceLimit    = "resource_limit"
	ExecUserSetupFailed  = "user_setup_failed"
	ExecOutOfMemory      = "out_of_memory"
	ExecPtySetupFailed   = "pty_setup_failed"
	ExecOther            = "other"
)

// ExecFailedPayload says why no process was started.
type ExecFailedPayload struct {
	Kind      string  `cbor:"kind"`
	Errno     *int32  `cbor:"errno"`
	ErrnoName *string `cbor:"errno_name"`
	Message   string  `cbor:"message"`
	Stage     *string `cbor:"stage"`
}

// ExecResizePayload is a terminal's new size.
type ExecResizePayload struct {
	Rows uint16 `cbor:"rows"`
	Cols uint16 `cbor:"cols"`
}

// ExecSignalPayload is a signal for the whole process group.
type ExecSignalPayload struct {
	Signal int32 `cbor:"signal"`
}
