package creds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// oauthSuffix marks the files that hold logins.
const oauthSuffix = ".oauth"

// Login is what an OAuth login at an MCP server gave. It is stored in a file of
// mode 0600, since refreshing needs a lock between processes.
type Login struct {
	Server       string // URL that it is good for
	Issuer       string
	TokenURL     string
	ClientID     string
	ClientSecret Secret
	AuthStyle    int // golang.org/x/oauth2.AuthStyle
	Resource     string
	Scopes       []string
	Access       Secret
	Refresh      Secret
	Expiry       time.Time // zero: not known
}

// loginFile is Login as it is in the file.
type loginFile struct {
	Server       string    `json:"server"`
	Issuer       string    `json:"issuer"`
	TokenURL     string    `json:"token_url"`
	ClientID     string    `json:"client_id"`
	ClientSecret string    `json:"client_secret,omitempty"`
	AuthStyle    int       `json:"auth_style,omitempty"`
	Resource     string    `json:"resource,omitempty"`
	Scopes       []string  `json:"scopes,omitempty"`
	Access       string    `json:"access_token"`
	Refresh      string    `json:"refresh_token,omitempty"`
	Expiry       time.Time `json:"expiry,omitzero"`
}

// Login returns the login of an MCP server; none is ErrNotFound.
func (s *Store) Login(name string) (Login, error) {
	var l Login
	if err := CheckName(name); err != nil {
		return l, err
	}
	path := filepath.Join(s.dir, name+oauthSuffix)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return l, fmt.Errorf("%w: no login; run `msb mcp login %s`", ErrNotFound, name)
	}
	text, err := readSecret(path)
	if err != nil {
		return l, fmt.Errorf("login of %s: %w", name, err)
	}
	var f loginFile
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		// The decoder's error may quote the file.
		return l, fmt.Errorf("login of %s: %s is damaged; run `msb mcp login %s`", name, path, name)
	}
	return Login{
		Server: f.Server, Issuer: f.Issuer, TokenURL: f.TokenURL, ClientID: f.ClientID, ClientSecret: NewSecret(f.ClientSecret),
		AuthStyle: f.AuthStyle, Resource: f.Resource, Scopes: f.Scopes, Access: NewSecret(f.Access), Refresh: NewSecret(f.Refresh), Expiry: f.Expiry,
	}, nil
}

// SetLogin stores the login of an MCP server.
func (s *Store) SetLogin(name string, l Login) error {
	if err := CheckName(name); err != nil {
		return err
	}
	b, err := json.Marshal(loginFile{
		Server: l.Server, Issuer: l.Issuer, TokenURL: l.TokenURL, ClientID: l.ClientID, ClientSecret: l.ClientSecret.Reveal(),
		AuthStyle: l.AuthStyle, Resource: l.Resource, Scopes: l.Scopes, Access: l.Access.Reveal(), Refresh: l.Refresh.Reveal(), Expiry: l.Expiry,
	})
	if err == nil {
		err = s.write(name+oauthSuffix, b)
	}
	if err != nil {
		return fmt.Errorf("store login of %s: %w", name, err)
	}
	return nil
}

// LockLogin keeps other processes from renewing a login at the same time: a
// refresh token may be good for one use only.
func (s *Store) LockLogin(ctx context.Context, name string) (unlock func(), err error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	return s.lock(ctx, name+oauthSuffix)
}
