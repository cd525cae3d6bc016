package approval

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"msb/turn/durable"
)

// maxRules bounds the rules of a workspace and of all sessions together.
const maxRules = 4096

// ErrNoRule reports an id that no rule has.
var ErrNoRule = errors.New("no such rule")

// Rules holds what the user had remembered: those of the workspace in a file,
// those of sessions in memory until the process ends. It is safe for
// concurrent use.
type Rules struct {
	path string

	mu   sync.Mutex
	list []Rule
}

type rulesFile struct {
	Version int    `json:"version"`
	Rules   []Rule `json:"rules"`
}

// OpenRules reads the rules of a workspace. A file that is not there holds
// none; one that cannot be understood is an error, since a rule in it may deny.
func OpenRules(path string) (*Rules, error) {
	r := &Rules{path: path}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	var file rulesFile
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("rules %s: %w; repair the file, or remove it to forget all rules", path, err)
	}
	if file.Version != 1 {
		return nil, fmt.Errorf("rules %s have version %d, this msb knows 1", path, file.Version)
	}
	for _, rule := range file.Rules {
		if err := rule.check(); err != nil {
			return nil, fmt.Errorf("rules %s: %w; repair the file, or remove it to forget all rules", path, err)
		}
		if rule.Session != "" || len(r.list) == maxRules {
			return nil, fmt.Errorf("rules %s: more than %d rules, or one of a session", path, maxRules)
		}
		r.list = append(r.list, rule)
	}
	return r, nil
}

// List returns all rules, oldest first.
func (r *Rules) List() []Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// Match finds the rule that decides on a request. One that denies goes before
// those that allow.
func (r *Rules) Match(q Request) (Rule, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found Rule
	for _, rule := range r.list {
		if rule.Match(q) && (found.ID == "" || found.Allow && !rule.Allow) {
			found = rule
		}
	}
	return found, found.ID != ""
}

// Add adds a rule and returns it with its id.
func (r *Rules) Add(rule Rule) (Rule, error) {
	var id [4]byte
	rand.Read(id[:])
	rule.ID = "r-" + hex.EncodeToString(id[:])
	if err := rule.check(); err != nil {
		return Rule{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) >= maxRules {
		return Rule{}, fmt.Errorf("there are %d rules already; remove some with `msb rules rm`", maxRules)
	}
	return rule, r.replace(append(slices.Clone(r.list), rule), rule.Session == "")
}

// Remove removes a rule and returns it.
func (r *Rules) Remove(id string) (Rule, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, rule := range r.list {
		if rule.ID == id {
			return rule, r.replace(slices.Delete(slices.Clone(r.list), i, i+1), rule.Session == "")
		}
	}
	return Rule{}, fmt.Errorf("%w: %q", ErrNoRule, id)
}

// Forget drops the rules of a session.
func (r *Rules) Forget(session string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.DeleteFunc(r.list, func(rule Rule) bool { return rule.Session == session && session != "" })
}

// replace makes list the rules, in the file first where it holds some of them.
func (r *Rules) replace(list []Rule, saved bool) error {
	if saved {
		file := rulesFile{Version: 1, Rules: []Rule{}}
		for _, rule := range list {
			if rule.Session == "" {
				file.Rules = append(file.Rules, rule)
			}
		}
		b, err := json.MarshalIndent(file, "", "  ")
		if err == nil {
			err = os.MkdirAll(filepath.Dir(r.path), 0o700)
		}
		if err == nil {
			err = durable.WriteFile(r.path, append(b, '\n'))
		}
		if err != nil {
			return fmt.Errorf("save rules: %w", err)
		}
	}
	r.list = list
	return nil
}
