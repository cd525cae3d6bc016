package turnrpc

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the inventory of an extension version that has none yet")

// payloads are all types that cross the wire.
var payloads = []any{
	Frame{}, Error{}, Hello{}, HelloResult{}, UserTurn{}, CancelTurn{}, OK{}, AgentEvent{}, Usage{}, Context{}, GuestModel{}, SetModel{},
	ArchiveChunk{}, ArchiveResult{}, PatchResult{}, Frozen{}, SetTime{}, GuestConfig{},
	ProviderOpen{}, ProviderOpened{}, ProviderSend{}, ProviderCancel{}, ProviderRequest{}, Message{}, Tool{}, ProviderEvent{},
	MCPTool{}, MCPTools{}, MCPCall{}, MCPResult{}, MCPCancel{}, ApprovalRequest{}, Approval{},
	ListFiles{}, ListFilesResult{}, ReadFile{}, ReadFileResult{}, Search{}, SearchResult{}, ApplyPatch{}, ApplyPatchResult{}, RunCommand{}, RunCommandResult{},
}

// inventory is what a version of the contract or of an extension consists of.
type inventory struct {
	Name    string              `json:"name"`
	Version int                 `json:"version"`
	Types   map[string][]string `json:"types,omitempty"`   // fields by type; of an extension: those that it adds
	Values  map[string][]string `json:"values,omitempty"`  // words with a meaning; of an extension: those that it adds
	Calls   map[string]int      `json:"calls,omitempty"`   // of a guest, with the least version
	Serves  []string            `json:"serves,omitempty"`  // what a guest serves
	Meaning string              `json:"meaning,omitempty"` // of an extension that changes how a peer acts
}

// additions are what each extension adds, by hand: the rest is the contract.
func additions() []inventory {
	return []inventory{
		{Name: ExtToolStarted, Version: 1, Values: map[string][]string{"AgentEvent.kind": {EventToolStart}}},
		{Name: ExtOutput, Version: 1, Types: map[string][]string{"AgentEvent": {"stream string optional"}}, Values: map[string][]string{"AgentEvent.kind": {EventOutput}}},
		{Name: ExtDenialReason, Version: 1, Types: map[string][]string{"Approval": {"cause string optional", "reason string optional"}},
			Values:  map[string][]string{"Approval.cause": {CauseUser, CauseRule, CauseTimeout, CauseNoApprover, CauseCancelled, CauseError}},
			Meaning: "a guest waits for the answer to mcp_call without a limit of its own"},
		{Name: ExtContextWindow, Version: 1, Types: map[string][]string{"ProviderOpened": {"input_tokens int optional"}}},
		{Name: ExtSystemPrompt, Version: 1, Values: map[string][]string{"Message.role": {RoleSystem}}},
	}
}

// negotiation is how extensions are listed at all; hosts and guests that know none ignore it.
var negotiation = map[string][]string{"Hello": {"extensions map[string]int optional"}, "HelloResult": {"extensions map[string]int optional"}}

func fields(v any) []string {
	t := reflect.TypeOf(v)
	var list []string
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		kind := strings.TrimPrefix(t.Field(i).Type.String(), "*")
		line := name + " " + strings.ReplaceAll(strings.ReplaceAll(kind, "turnrpc.", ""), "json.RawMessage", "JSON")
		if options == "omitempty" {
			line += " optional"
		}
		list = append(list, line)
	}
	return list
}

// contract is everything but the additions.
func contract() inventory {
	s := inventory{Name: "turn", Version: Version, Types: map[string][]string{}, Calls: guestCalls,
		Serves: []string{MethodUserTurn, MethodCancelTurn, MethodShutdown, MethodGetContext, MethodSetModel, MethodArchiveChunk, MethodExportPatch,
			MethodQuiesce, MethodSetTime, MethodListFiles, MethodReadFile, MethodSearch, MethodApplyPatch, MethodRunCommand},
		Values: map[string][]string{
			"AgentEvent.kind":    {EventText, EventTool, EventApproval, EventResult, EventError, EventDone, EventUser},
			"AgentEvent.status":  {StatusOK, StatusError, StatusPending, StatusAllowed, StatusDenied},
			"Approval.decision":  {DecisionAllowOnce, DecisionDeny},
			"Error.code":         {CodeGuest, CodeAgent, CodeCanceled, CodeHost, CodeBusy},
			"Message.role":       {RoleUser, RoleAssistant, RoleTool},
			"ProviderEvent.type": {ProviderText, ProviderTool, ProviderUsage, ProviderDone, ProviderError},
		}}
	extra := maps.Clone(negotiation)
	for _, e := range additions() {
		for name, list := range e.Types {
			extra[name] = append(slices.Clone(extra[name]), list...)
		}
	}
	for _, v := range payloads {
		name := reflect.TypeOf(v).Name()
		s.Types[name] = slices.DeleteFunc(fields(v), func(f string) bool { return slices.Contains(extra[name], f) })
	}
	return s
}

func inventoryFile(s inventory) string {
	return fmt.Sprintf("testdata/schema/%s-%d.json", s.Name, s.Version)
}

// TestSchemaSnapshot holds the payloads against the frozen inventories: of the
// contract, which never changes, and of each extension. What is new needs a
// name or a version of its own.
func TestSchemaSnapshot(t *testing.T) {
	listed := map[string]int{}
	for _, s := range append([]inventory{contract()}, additions()...) {
		current, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		current = append(current, '\n')
		file := inventoryFile(s)
		if _, err := os.Stat(file); err != nil && *update {
			if err := os.WriteFile(file, current, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		frozen, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(frozen, current) {
			t.Errorf("%s %d is not what %s says; it is now\n%s", s.Name, s.Version, file, current)
		}
		if s.Name != "turn" {
			listed[s.Name] = max(listed[s.Name], s.Version)
		}
	}
	if !maps.Equal(listed, Extensions()) {
		t.Errorf("inventories of %v, extensions %v", listed, Extensions())
	}
	// What an extension adds is really there, and can be left out.
	for _, s := range additions() {
		for name, list := range s.Types {
			i := slices.IndexFunc(payloads, func(v any) bool { return reflect.TypeOf(v).Name() == name })
			for _, f := range list {
				if i < 0 || !slices.Contains(fields(payloads[i]), f) || !strings.HasSuffix(f, " optional") {
					t.Errorf("%s adds %s.%s, which is not there or not optional", s.Name, name, f)
				}
			}
		}
	}
}

// TestSchemaAppendOnly holds each version of an extension against the one
// before: nothing is taken away.
func TestSchemaAppendOnly(t *testing.T) {
	load := func(name string, version int) (s inventory) {
		b, err := os.ReadFile(inventoryFile(inventory{Name: name, Version: version}))
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, newest := range Extensions() {
		for v := 2; v <= newest; v++ {
			older, newer := load(name, v-1), load(name, v)
			for _, pair := range [][2]map[string][]string{{older.Types, newer.Types}, {older.Values, newer.Values}} {
				for of, list := range pair[0] {
					for _, x := range list {
						if !slices.Contains(pair[1][of], x) {
							t.Errorf("%s %d dropped %s.%s", name, v, of, x)
						}
					}
				}
			}
		}
	}
}
