package fusefs_test

import "msb/protocol/agent"

// scripts are what a hostile guest may answer, by name.
var scripts = map[string]func(dir string) func(op agent.FSOp) (agent.FSResponsePayload, bool){}
