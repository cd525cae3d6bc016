package turn

import (
	"sync"

	"msb/protocol/turnrpc"
)

// Budgets of a request's messages, in bytes.
const (
	// messageBudget is for a model whose window is not known: 128 000 tokens with room for tools and an answer.
	messageBudget = 384 << 10
	// smallBudget is tried, once, when a host says that a request is too large for its model.
	smallBudget = 96 << 10
	// leastBudget is kept however small a window is, and mostBudget however large.
	leastBudget = 4 << 10
	mostBudget  = 1 << 20
)

// Bytes of a token: the guess before a provider has counted any, and the bounds of what is learned from its counts.
const (
	guessedTokenBytes = 3.0
	leastTokenBytes   = 1.0
	mostTokenBytes    = 4.0
)

// tokens turns a model's window, which is counted in tokens, into bytes. How many bytes a token has depends on the model
// and on what is said, so it is learned from the counts that come with answers. Safe for concurrent use.
type tokens struct {
	mu    sync.Mutex
	model string
	bytes float64 // of a token; 0: nothing is known
	most  int     // messages of more bytes were refused; 0: none were
}

// learn notes that a request of a size was counted as so many tokens.
func (k *tokens) learn(model string, size int, counted int64) {
	if counted < 256 { // too little to tell, or a provider that does not count
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of(model)
	k.bytes = min(max(float64(size)/float64(counted), leastTokenBytes), mostTokenBytes)
}

// refused notes that messages of a size were too long, and returns what to try then.
func (k *tokens) refused(model string, size int) (smaller int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of(model)
	k.most = max(size*2/3, leastBudget)
	return max(min(smallBudget, size/3), leastBudget)
}

// of forgets what was learned from another model.
func (k *tokens) of(model string) {
	if k.model != model {
		k.model, k.bytes, k.most = model, 0, 0
	}
}

// budget is how large the messages of a request may be: window is in tokens and 0 if it is not known, fixed are the bytes
// of what goes with every request.
func (k *tokens) budget(model string, window, fixed int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of(model)
	most := mostBudget
	if k.most > 0 {
		most = k.most
	}
	if window <= 0 {
		return min(messageBudget, most)
	}
	each := guessedTokenBytes
	if k.bytes > 0 {
		each = k.bytes * 0.9 // what comes next may have shorter ones
	}
	return min(max(int(min(float64(window)*each, mostBudget))-fixed, leastBudget), most)
}

// fixedSize is what the prompt and the tools take of a request.
func fixedSize(prompt string, tools []turnrpc.Tool) int {
	n := len(prompt) + 64
	for i := range tools {
		n += len(tools[i].Name) + len(tools[i].Description) + len(tools[i].Parameters) + 64
	}
	return n
}
