package fusefs

import "github.com/hanwen/go-fuse/v2/fuse"

// capKillPriv: the file system takes set-id bits away itself. Without it the
// kernel asks for security.capability before every write.
const capKillPriv = fuse.CAP_HANDLE_KILLPRIV_V2
