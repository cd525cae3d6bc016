package mcp

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// issue is one of the demo's tracker.
type issue struct {
	number       int
	title, state string
	text         string
}

var issues = []issue{
	{1, "Show how a turn goes", "open", "The demo should look at the workspace, ask this tracker, ask for a command, and edit a file."},
	{2, "Flaky test: TestExpiry", "open", "Fails about once in fifty runs. The demo clock may tick between the two calls."},
	{3, "Document the settings file", "closed", "Every key, with an example. Done in the manual."},
	{4, "Demo: say that it is scripted", "closed", "Nobody should mistake the script for a model."},
}

type searchInput struct {
	Query string `json:"query" jsonschema:"words to look for in title and text; empty finds everything"`
}

type issueInput struct {
	Number int `json:"number" jsonschema:"the issue's number"`
}

type noteInput struct {
	Number int    `json:"number" jsonschema:"the issue's number"`
	Text   string `json:"text" jsonschema:"the note"`
}

// Demo serves the demo's MCP server, a small issue tracker that is always the
// same, until in ends. Notes are kept as long as it runs.
func Demo(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	err := demoServer().Run(ctx, &sdk.IOTransport{Reader: in, Writer: out})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func demoServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "msb-demo", Title: "Demo issue tracker", Version: "1"}, nil)
	reads := &sdk.ToolAnnotations{ReadOnlyHint: true}
	var mu sync.Mutex
	notes := make(map[int][]string)

	sdk.AddTool(s, &sdk.Tool{Name: "search_issues", Description: "Search the demo's issue tracker.", Annotations: reads},
		func(_ context.Context, _ *sdk.CallToolRequest, q searchInput) (*sdk.CallToolResult, any, error) {
			var found []string
			for _, i := range issues {
				if contains(i.title+" "+i.text, q.Query) {
					found = append(found, fmt.Sprintf("#%d [%s] %s", i.number, i.state, i.title))
				}
			}
			if found == nil {
				return say("no issue matches"), nil, nil
			}
			return say(strings.Join(found, "\n")), nil, nil
		})
	sdk.AddTool(s, &sdk.Tool{Name: "get_issue", Description: "Show one issue of the demo's tracker with its notes.", Annotations: reads},
		func(_ context.Context, _ *sdk.CallToolRequest, q issueInput) (*sdk.CallToolResult, any, error) {
			for _, i := range issues {
				if i.number == q.Number {
					text := fmt.Sprintf("#%d [%s] %s\n\n%s", i.number, i.state, i.title, i.text)
					mu.Lock()
					defer mu.Unlock()
					for _, n := range notes[i.number] {
						text += "\n\nnote: " + n
					}
					return say(text), nil, nil
				}
			}
			return nil, nil, fmt.Errorf("there is no issue %d", q.Number)
		})
	no := false
	sdk.AddTool(s, &sdk.Tool{Name: "add_note", Description: "Add a note to an issue. It is forgotten when the session ends.", Annotations: &sdk.ToolAnnotations{DestructiveHint: &no}},
		func(_ context.Context, _ *sdk.CallToolRequest, q noteInput) (*sdk.CallToolResult, any, error) {
			const most, longest = 100, 4 << 10
			mu.Lock()
			defer mu.Unlock()
			switch {
			case q.Number < 1 || q.Number > len(issues):
				return nil, nil, fmt.Errorf("there is no issue %d", q.Number)
			case len(q.Text) > longest || len(notes[q.Number]) >= most:
				return nil, nil, fmt.Errorf("a note has at most %d bytes, an issue at most %d notes", longest, most)
			}
			notes[q.Number] = append(notes[q.Number], q.Text)
			return say(fmt.Sprintf("noted at #%d", q.Number)), nil, nil
		})
	return s
}

func say(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

// contains tells whether a text has all words of a query.
func contains(text, query string) bool {
	text = strings.ToLower(text)
	for _, word := range strings.Fields(strings.ToLower(query)) {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}
