package agentclient

import (
	"fmt"

	"msb/protocol/agent"
)

// Extensions returns what both sides speak beyond the contract, name →
// version. It is empty for a guest that is not ours.
func (c *Client) Extensions() agent.Extensions {
	common := agent.Extensions{}
	if c.ready.NegotiatedVersion < agent.ExtensionGeneration {
		return common
	}
	for name, ours := range agent.OurExtensions() {
		if v := min(ours, c.ready.Info.Extensions[name]); v > 0 {
			common[name] = v
		}
	}
	return common
}

// NotOfferedError says that the guest does not serve an extension. Nothing was
// sent and nothing else on the connection is disturbed.
type NotOfferedError struct {
	Extension string
	Needs     uint8 // version
	Offered   uint8 // 0: none
}

func (e *NotOfferedError) Error() string {
	if e.Offered > 0 {
		return fmt.Sprintf("this sandbox's agent speaks %s %d, %d is needed: restart the sandbox to bring in a current agent", e.Extension, e.Offered, e.Needs)
	}
	return fmt.Sprintf("this sandbox's agent does not offer %s: restart the sandbox to bring in a current agent, if it is one of msb's", e.Extension)
}
