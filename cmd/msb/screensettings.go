package main

import (
	"errors"
	"slices"

	"go.yaml.in/yaml/v4"

	"msb/tui/keymap"
	"msb/turn/config"
)

// screenSettings is the section "screen" of the settings.
type screenSettings struct {
	// Keys are the user's keys by "place.action", such as boxes.start: [f5].
	Keys map[string][]string `yaml:"keys"`
	// Notify is a command that tells the user something; the text is its last argument.
	Notify []string `yaml:"notify"`
}

// loadScreen reads what the settings say about the screen. A mistake is a *config.Error with line and column.
func loadScreen(path string) (screenSettings, *keymap.Map, error) {
	var s screenSettings
	c, err := config.Load(path)
	if err != nil {
		return s, nil, err
	}
	if err := c.Section("screen", &s); err != nil {
		return s, nil, err
	}
	section, _ := c.Screen.(*yaml.Node)
	if len(s.Notify) > 0 && s.Notify[0] == "" {
		return s, nil, at(path, below(section, "notify", nil), "screen.notify: the program has no name")
	}
	m, err := keymap.New(s.Keys)
	var wrong *keymap.Error
	if errors.As(err, &wrong) {
		return s, nil, at(path, below(below(section, "keys", nil), wrong.Action, &wrong.Index), "screen.keys."+wrong.Error())
	}
	return s, m, err
}

// below finds the value of a key in a mapping: with an index the item of that list, or the key itself when the index
// is negative.
func below(n *yaml.Node, key string, index *int) *yaml.Node {
	if n == nil {
		return nil
	}
	i := slices.IndexFunc(n.Content, func(k *yaml.Node) bool { return k.Value == key })
	switch {
	case n.Kind != yaml.MappingNode || i < 0 || i%2 != 0 || i+1 >= len(n.Content):
		return n
	case index == nil:
		return n.Content[i+1]
	case *index < 0 || *index >= len(n.Content[i+1].Content):
		return n.Content[i]
	}
	return n.Content[i+1].Content[*index]
}

func at(path string, n *yaml.Node, message string) error {
	e := &config.Error{Source: path, Message: message}
	if n != nil {
		e.Line, e.Column = n.Line, n.Column
	}
	return e
}
