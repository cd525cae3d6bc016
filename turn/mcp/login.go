package mcp

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"msb/turn/config"
	"msb/turn/creds"
)

// LoginTimeout is how long the user has to log in.
const LoginTimeout = 5 * time.Minute

// ErrNoLogin reports a server that asks for no login.
var ErrNoLogin = errors.New("the server asks for no login")

// Login logs in at a server with OAuth: it finds the authorization server,
// registers itself if the settings name no client, and has open show a URL to
// the user. The tokens are stored, and renewed later.
func Login(ctx context.Context, s config.Server, store *creds.Store, open func(url string) error) error {
	if s.URL == "" || s.Credential != nil {
		return fmt.Errorf("MCP server %s has no OAuth login: it has a command or a credential", s.Name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, LoginTimeout, fmt.Errorf("nobody logged in within %v", LoginTimeout))
	defer cancel()
	client := guarded(ctx, s)
	defer client.CloseIdleConnections()
	f := &flow{server: s, store: store, client: client, open: open}
	if err := f.run(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("log in at MCP server %s: %w", s.Name, err)
	}
	return nil
}

// flow is a login under way.
type flow struct {
	server config.Server
	store  *creds.Store
	client *http.Client
	open   func(string) error

	scopes []string // that the server asks for
	login  creds.Login
}

func (f *flow) run(ctx context.Context) error {
	issuer, err := f.discover(ctx)
	if err != nil {
		return err
	}
	as, err := auth.GetAuthServerMetadata(ctx, issuer, f.client)
	switch {
	case err != nil:
		return fmt.Errorf("ask the authorization server about itself: %w", err)
	case as == nil:
		return fmt.Errorf("%s says nothing about how to log in", issuer)
	case !slices.Contains(as.CodeChallengeMethodsSupported, "S256"):
		return fmt.Errorf("%s does not support PKCE with S256, which is needed", issuer)
	case as.AuthorizationEndpoint == "" || as.TokenEndpoint == "":
		return fmt.Errorf("%s does not say where to log in", issuer)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("wait for the browser: %w", err)
	}
	defer listener.Close()
	redirect := "http://" + listener.Addr().String() + "/callback"
	f.login.Server, f.login.Issuer, f.login.TokenURL = f.server.URL, as.Issuer, as.TokenEndpoint
	if err := f.identify(ctx, as, redirect); err != nil {
		return err
	}
	f.login.Scopes = f.scopes
	if f.server.OAuth != nil && len(f.server.OAuth.Scopes) > 0 {
		f.login.Scopes = f.server.OAuth.Scopes
	}
	if slices.Contains(as.ScopesSupported, "offline_access") && !slices.Contains(f.login.Scopes, "offline_access") {
		f.login.Scopes = append(slices.Clone(f.login.Scopes), "offline_access") // for a refresh token
	}
	verifier, state := oauth2.GenerateVerifier(), rand.Text()
	conf := oauth2.Config{ClientID: f.login.ClientID, RedirectURL: redirect, Scopes: f.login.Scopes, Endpoint: oauth2.Endpoint{AuthURL: as.AuthorizationEndpoint}}
	if err := f.open(conf.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("resource", f.login.Resource))); err != nil {
		return err
	}
	code, err := wait(ctx, listener, state, as)
	if err != nil {
		return err
	}
	form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {redirect}, "code_verifier": {verifier}}
	if err := exchange(ctx, f.client, &f.login, form); err != nil {
		return err
	}
	unlock, err := f.store.LockLogin(ctx, f.server.Name)
	if err != nil {
		return err
	}
	defer unlock()
	return f.store.SetLogin(f.server.Name, f.login)
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"msb","version":"1"}}}`

// discover asks the server, without a token, who may give one, and returns that
// issuer.
func (f *flow) discover(ctx context.Context) (issuer string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.server.URL, strings.NewReader(initialize))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := f.client.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the server: %w", err)
	}
	res.Body.Close()
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return "", ErrNoLogin
	case res.StatusCode != http.StatusUnauthorized:
		return "", fmt.Errorf("the server answered %s and does not ask for a login", res.Status)
	}
	base := *req.URL
	base.RawQuery, base.Fragment = "", ""
	root := base
	root.Path = ""
	var places []string
	challenges, _ := oauthex.ParseWWWAuthenticate(res.Header.Values("WWW-Authenticate")) // broken ones say nothing
	for _, c := range challenges {
		if s := c.Params["scope"]; s != "" && strings.EqualFold(c.Scheme, "bearer") {
			f.scopes = strings.Fields(s)
		}
		u, err := url.Parse(c.Params["resource_metadata"])
		if err != nil || c.Params["resource_metadata"] == "" {
			continue
		}
		if origin(u) != origin(&base) {
			return "", fmt.Errorf("the server refers to %s for its metadata, which is another address", clip(u.Host, 128))
		}
		places = append(places, u.String())
	}
	well := root
	well.Path = "/.well-known/oauth-protected-resource"
	if p := strings.Trim(base.Path, "/"); p != "" {
		withPath := well
		withPath.Path += "/" + p
		places = append(places, withPath.String())
	}
	places = append(places, well.String())
	// Servers name themselves with and without their path.
	names := []string{f.server.URL, strings.TrimRight(f.server.URL, "/"), root.String(), root.String() + "/"}
	for _, place := range places {
		for i, name := range names {
			if slices.Contains(names[:i], name) {
				continue
			}
			meta, err := oauthex.GetProtectedResourceMetadata(ctx, place, name, f.client)
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			if err != nil || meta == nil || len(meta.AuthorizationServers) == 0 {
				continue
			}
			f.login.Resource = name
			if len(f.scopes) == 0 {
				f.scopes = meta.ScopesSupported
			}
			return meta.AuthorizationServers[0], nil
		}
	}
	// Before there was such metadata, a server was its own issuer.
	f.login.Resource = f.server.URL
	return root.String(), nil
}

// identify finds out who we are to the authorization server.
func (f *flow) identify(ctx context.Context, as *oauthex.AuthServerMeta, redirect string) error {
	if o := f.server.OAuth; o != nil && o.ClientID != "" {
		f.login.ClientID = o.ClientID
		if o.ClientSecret == nil {
			return nil
		}
		secret, err := f.store.Resolve(ctx, *o.ClientSecret)
		f.login.ClientSecret = secret
		if slices.Contains(as.TokenEndpointAuthMethodsSupported, "client_secret_post") {
			f.login.AuthStyle = int(oauth2.AuthStyleInParams)
		} else {
			f.login.AuthStyle = int(oauth2.AuthStyleInHeader)
		}
		return err
	}
	if as.RegistrationEndpoint == "" {
		return fmt.Errorf("%s registers no clients by itself: register msb there, and set oauth: {client_id: …} for the server", as.Issuer)
	}
	client, err := oauthex.RegisterClient(ctx, as.RegistrationEndpoint, &oauthex.ClientRegistrationMetadata{
		RedirectURIs: []string{redirect}, TokenEndpointAuthMethod: "none", ApplicationType: "native",
		GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"}, ClientName: "msb",
	}, f.client)
	if err != nil {
		return fmt.Errorf("register at %s: %s", as.Issuer, cut(err.Error(), 512))
	}
	f.login.ClientID, f.login.ClientSecret = client.ClientID, creds.NewSecret(client.ClientSecret)
	f.login.AuthStyle = int(oauth2.AuthStyleInParams)
	if client.TokenEndpointAuthMethod == "client_secret_basic" || client.TokenEndpointAuthMethod == "" {
		f.login.AuthStyle = int(oauth2.AuthStyleInHeader)
	}
	return nil
}

// wait serves the address that the browser comes back to, until it comes with
// the right state.
func wait(ctx context.Context, listener net.Listener, state string, as *oauthex.AuthServerMeta) (code string, err error) {
	type outcome struct {
		code string
		err  error
	}
	came := make(chan outcome, 1)
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			if r.Method != http.MethodGet || r.URL.Path != "/callback" || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 {
				http.NotFound(w, r)
				return
			}
			var o outcome
			switch {
			case q.Get("iss") != "" && strings.TrimRight(q.Get("iss"), "/") != strings.TrimRight(as.Issuer, "/"),
				q.Get("iss") == "" && as.AuthorizationResponseIssParameterSupported:
				o.err = errors.New("the answer is not from the authorization server that was asked")
			case q.Get("error") != "":
				o.err = fmt.Errorf("the authorization server refused: %q", clip(q.Get("error"), 128))
			case q.Get("code") == "":
				o.err = errors.New("the authorization server gave no code")
			default:
				o.code = q.Get("code")
			}
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("Referrer-Policy", "no-referrer")
			if o.err == nil {
				fmt.Fprintln(w, "msb: logged in. You can close this page.")
			} else {
				fmt.Fprintln(w, "msb: the login failed. The terminal says why.")
			}
			select {
			case came <- o:
			default: // the first one counts
			}
		}),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with Shutdown or Close
	}()
	defer func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if server.Shutdown(late) != nil { // lets the browser have its answer
			server.Close()
		}
		<-served
	}()
	select {
	case o := <-came:
		return o.code, o.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
