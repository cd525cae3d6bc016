package approval

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v4"
)

// maxPolicyFile bounds a policy file, in bytes.
const maxPolicyFile = 1 << 20

// LoadPolicy returns what `--approve` asks for: "ask" is nil, people and
// remembered rules; "deny" is DenyAll; anything else names a policy file:
//
//	version: 1
//	default: deny            # or ask
//	rules:
//	  - allow: {command: "go test ./..."}
//	  - allow: {words: [go, test, "..."]}
//	  - deny: {words: [git, push, "..."]}
//	  - allow: {server: tracker, tool: search_issues}
//
// Whatever it does not understand is an error with line and column.
func LoadPolicy(approve string) (*Policy, error) {
	switch approve {
	case "ask":
		return nil, nil
	case "deny", "":
		return DenyAll(), nil
	}
	f, err := os.Open(approve)
	if err != nil {
		return nil, fmt.Errorf("policy: %w; `deny`, `ask` or the name of a policy file is needed", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPolicyFile+1))
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if len(b) > maxPolicyFile {
		return nil, fmt.Errorf("policy %s has more than %d bytes", approve, maxPolicyFile)
	}
	p, err := ParsePolicy(b)
	if err != nil {
		return nil, fmt.Errorf("policy %s:%w", approve, err)
	}
	p.Source = filepath.Base(approve)
	return p, nil
}

// ParsePolicy reads the text of a policy file. Errors begin with line:column.
func ParsePolicy(b []byte) (*Policy, error) {
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(b))
	switch err := d.Decode(&doc); {
	case err == io.EOF || err == nil && len(doc.Content) != 1:
		return nil, errors.New("1:1: the file is empty; it needs version, default and rules")
	case err != nil:
		return nil, fmt.Errorf(" %w", err)
	}
	if err := d.Decode(&more); err == nil {
		return nil, at(&more, "there is a second document; what is in it would not count")
	} else if err != io.EOF {
		return nil, fmt.Errorf(" %w", err)
	}
	root := doc.Content[0]
	p, version, fallback := &Policy{Source: "policy"}, "", "deny"
	err := fields(root, map[string]func(*yaml.Node) error{
		"version": func(n *yaml.Node) error { return scalar(n, "!!int", &version) },
		"default": func(n *yaml.Node) error { return scalar(n, "!!str", &fallback) },
		"rules": func(n *yaml.Node) error {
			if n.Kind != yaml.SequenceNode {
				return at(n, "rules must be a list")
			}
			for _, item := range n.Content {
				rule, err := parseRule(item)
				if err != nil {
					return err
				}
				p.Rules = append(p.Rules, rule)
			}
			return nil
		},
	})
	switch {
	case err != nil:
		return nil, err
	case version != "1":
		return nil, at(root, "version must be 1")
	case fallback != "deny" && fallback != "ask":
		return nil, at(root, "default must be deny or ask")
	}
	p.Ask = fallback == "ask"
	return p, nil
}

func parseRule(n *yaml.Node) (PolicyRule, error) {
	var rule PolicyRule
	set := 0
	decision := func(allow bool) func(*yaml.Node) error {
		return func(n *yaml.Node) error {
			set++
			rule.Allow = allow
			return fields(n, map[string]func(*yaml.Node) error{
				"command": func(n *yaml.Node) error { return scalar(n, "!!str", &rule.Command) },
				"workdir": func(n *yaml.Node) error { return scalar(n, "!!str", &rule.Workdir) },
				"server":  func(n *yaml.Node) error { return scalar(n, "!!str", &rule.Server) },
				"tool":    func(n *yaml.Node) error { return scalar(n, "!!str", &rule.Tool) },
				"words": func(n *yaml.Node) error {
					if n.Kind != yaml.SequenceNode {
						return at(n, "words must be a list")
					}
					for _, item := range n.Content {
						// A number is a word as it is written.
						if item.Kind != yaml.ScalarNode || item.ShortTag() == "!!null" {
							return at(item, "a word must be text")
						}
						rule.Words = append(rule.Words, item.Value)
					}
					return nil
				},
			})
		}
	}
	err := fields(n, map[string]func(*yaml.Node) error{"allow": decision(true), "deny": decision(false)})
	if err == nil && set != 1 {
		err = at(n, "an entry is either allow or deny")
	}
	if err == nil {
		if e := rule.Check(); e != nil {
			err = at(n, e.Error())
		}
	}
	return rule, err
}

// fields hands the values of a mapping to those who know their keys.
func fields(n *yaml.Node, known map[string]func(*yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return at(n, "there must be a mapping (key: value)")
	}
	var seen []string
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		parse := known[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || parse == nil:
			return at(key, fmt.Sprintf("unknown key %.64q", key.Value))
		case slices.Contains(seen, key.Value):
			return at(key, fmt.Sprintf("key %q is there twice", key.Value))
		}
		seen = append(seen, key.Value)
		if err := parse(n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func scalar(n *yaml.Node, tag string, v *string) error {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != tag {
		what := "text; put it in quotes"
		if tag == "!!int" {
			what = "a number"
		}
		return at(n, "there must be "+what)
	}
	*v = n.Value
	return nil
}

func at(n *yaml.Node, message string) error {
	return fmt.Errorf("%d:%d: %s", n.Line, n.Column, message)
}
