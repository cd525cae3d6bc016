// Package turn is the agent of a session, in the guest: it speaks the guest's side of the turn RPC, runs the loop of
// model and tools, and keeps the conversation. It holds no key and reaches no network: models, MCP servers and the
// person who approves commands are the host's. Package warden says as whom it runs, and starts it.
package turn
