// Package relay serves one guest to many clients. It owns the ports into the guest, gives every client
// of agent.sock a range of correlation ids, and passes frames between them by id, unchanged.
//
// Towards the guest, frames wait in one lane a client until the scheduler takes them: the runtime's own
// frames first, then commands of all clients in turn, then data, as far as the guest's transport credit
// goes and without letting one client's unread data use it up. Towards a client, frames wait in its
// outbox, bounded in bytes, where small ones pass the data of other operations; a client that stops
// reading loses its connection and nobody else's.
//
//	client ─ reader: rules, guard, sessions ─ lane ─┐              ┌─ writer ─ port agent
//	client ─ reader …                       ─ lane ─┤  scheduler ──┤
//	runtime: clock, leases, cleaning ───────────────┘   (credit)   └─ writer ─ port agent-bulk
//
//	port agent, port agent-bulk ─ reader: route by id, hold back ─ outbox ─ writer ─ client
package relay
