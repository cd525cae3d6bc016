package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"msb/turn/creds"
)

// early is how long before its end a token is renewed.
const early = 30 * time.Second

// loginToken is the token of the server's login; empty if there is none. An old
// one is renewed, and so is the one that was refused; refused is nil when none was.
func (s *server) loginToken(ctx context.Context, refused *creds.Secret) (creds.Secret, error) {
	var none creds.Secret
	if s.b.o.Credentials == nil {
		return s.anonymous(refused != nil)
	}
	l, err := s.b.o.Credentials.Login(s.conf.Name)
	switch {
	case errors.Is(err, creds.ErrNotFound), err == nil && l.Server != s.conf.URL:
		return s.anonymous(refused != nil)
	case err != nil:
		return none, err
	case refused == nil && !expired(l):
		return l.Access, nil
	case refused == nil:
		refused = &l.Access
	}
	return s.renew(ctx, *refused)
}

// anonymous is no token, unless the server wants one.
func (s *server) anonymous(refused bool) (creds.Secret, error) {
	if refused {
		return creds.Secret{}, &LoginError{Server: s.conf.Name}
	}
	return creds.Secret{}, nil
}

func expired(l creds.Login) bool {
	return !l.Expiry.IsZero() && time.Until(l.Expiry) < early
}

// renew gets a new token with the refresh token and stores both. When another
// one has done it since old was read, that result counts.
func (s *server) renew(ctx context.Context, old creds.Secret) (creds.Secret, error) {
	var none creds.Secret
	store := s.b.o.Credentials
	unlock, err := store.LockLogin(ctx, s.conf.Name)
	if err != nil {
		return none, err
	}
	defer unlock()
	l, err := store.Login(s.conf.Name)
	if err != nil {
		return none, err
	}
	if l.Access != old && !expired(l) {
		return l.Access, nil
	}
	if l.Refresh.Empty() {
		return none, &LoginError{Server: s.conf.Name}
	}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {l.Refresh.Reveal()}}
	client := guarded(ctx, s.conf)
	defer client.CloseIdleConnections()
	if err := exchange(ctx, client, &l, form); err != nil {
		var refused *tokenError
		if errors.As(err, &refused) {
			s.log.Warn("MCP login is no longer accepted", "err", refused)
			return none, &LoginError{Server: s.conf.Name}
		}
		return none, err
	}
	// From here on the old refresh token may be worthless.
	if err := store.SetLogin(s.conf.Name, l); err != nil {
		return none, err
	}
	return l.Access, nil
}

// tokenError is the refusal of a token endpoint.
type tokenError struct {
	Status int
	Code   string // of RFC 6749
}

func (e *tokenError) Error() string {
	return fmt.Sprintf("the authorization server answered %d %s", e.Status, e.Code)
}

// exchange asks a token endpoint and puts what it gives into the login.
func exchange(ctx context.Context, client *http.Client, l *creds.Login, form url.Values) error {
	form.Set("client_id", l.ClientID)
	if l.Resource != "" {
		form.Set("resource", l.Resource)
	}
	basic := oauth2.AuthStyle(l.AuthStyle) == oauth2.AuthStyleInHeader && !l.ClientSecret.Empty()
	if !basic && !l.ClientSecret.Empty() {
		form.Set("client_secret", l.ClientSecret.Reveal())
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return errors.New("the token endpoint is no address")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if basic {
		req.SetBasicAuth(url.QueryEscape(l.ClientID), url.QueryEscape(l.ClientSecret.Reveal()))
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("the authorization server cannot be reached: %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, creds.MaxSize))
	if err != nil {
		return fmt.Errorf("the authorization server's answer broke off: %w", err)
	}
	var answer struct {
		Access  string  `json:"access_token"`
		Refresh string  `json:"refresh_token"`
		Type    string  `json:"token_type"`
		Expires float64 `json:"expires_in"`
		Error   string  `json:"error"`
	}
	err = json.Unmarshal(body, &answer)
	switch {
	case res.StatusCode >= 500:
		return fmt.Errorf("the authorization server answered %d", res.StatusCode)
	case res.StatusCode != http.StatusOK:
		return &tokenError{res.StatusCode, clip(answer.Error, 64)}
	case err != nil, answer.Access == "":
		return errors.New("the authorization server's answer has no token")
	case answer.Type != "" && !strings.EqualFold(answer.Type, "bearer"):
		return fmt.Errorf("the authorization server gives tokens of type %q, which are not supported", clip(answer.Type, 32))
	case strings.ContainsFunc(answer.Access+answer.Refresh, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("the authorization server's token is not printable ASCII")
	}
	l.Access = creds.NewSecret(answer.Access)
	if answer.Refresh != "" {
		l.Refresh = creds.NewSecret(answer.Refresh)
	}
	l.Expiry = time.Time{}
	if answer.Expires > 0 && answer.Expires < 1e9 {
		l.Expiry = time.Now().Add(time.Duration(answer.Expires) * time.Second).UTC()
	}
	return nil
}
