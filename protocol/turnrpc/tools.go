package turnrpc

// The five tools of a guest, as a host calls them.

// ListFiles lists a directory of the workspace.
type ListFiles struct {
	Path  string `json:"path"`
	Depth int    `json:"depth,omitempty"` // at most MaxListDepth
	Limit int    `json:"limit,omitempty"` // at most MaxListPaths
}

// ListFilesResult holds sorted paths relative to the workspace.
type ListFilesResult struct {
	Paths []string `json:"paths"`
}

// ReadFile reads a file of the workspace. Lines count from 1, EndLine is
// included.
type ReadFile struct {
	Path      string `json:"path"`
	MaxBytes  int    `json:"max_bytes,omitempty"` // at most MaxReadFile
	StartLine int    `json:"start_line,omitempty"`
	EndLine   int    `json:"end_line,omitempty"`
}

// ReadFileResult has no content for a binary file.
type ReadFileResult struct {
	Content   string `json:"content"`
	Binary    bool   `json:"binary"`
	Truncated bool   `json:"truncated"`
}

// Search looks for text or a regular expression.
type Search struct {
	Query   string `json:"query"`
	Path    string `json:"path,omitempty"`
	IsRegex bool   `json:"is_regex,omitempty"`
	Limit   int    `json:"limit,omitempty"`
}

// SearchResult holds one match an entry.
type SearchResult struct {
	Matches []string `json:"matches"`
}

// ApplyPatch applies a unified diff.
type ApplyPatch struct {
	Patch string `json:"patch"` // at most MaxPatch bytes
}

// ApplyPatchResult holds what the tool said.
type ApplyPatchResult struct {
	OK     bool   `json:"ok"`
	Output string `json:"output"`
}

// RunCommand runs a shell command.
type RunCommand struct {
	Command    string `json:"command"`
	Workdir    string `json:"workdir,omitempty"`
	TimeoutSec int    `json:"timeout_sec,omitempty"`
}

// RunCommandResult is how a command ended.
type RunCommandResult struct {
	ExitCode  int    `json:"exit_code"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Duration  string `json:"duration"`
	Truncated bool   `json:"truncated"`
}

// Limits of the tools, in bytes where nothing else is said.
const (
	MaxListDepth     = 8    // levels
	MaxListPaths     = 2000 // paths
	MaxReadFile      = 256 << 10
	MaxPatch         = 1 << 20
	MaxCommandOutput = 1 << 20 // of each stream
)
