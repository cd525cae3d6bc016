package mcp_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zalando/go-keyring"

	"msb/turn/config"
	"msb/turn/creds"
	"msb/turn/mcp"
)

// withToken lets only requests with a token in.
func withToken(t *testing.T, ok func(token string) bool) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok(token) {
				w.WriteHeader(http.StatusUnauthorized)
				fmt.Fprintf(w, "body of the server: wrong token %s", token)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}

func TestBearer(t *testing.T) {
	var mu sync.Mutex
	good := canary
	s := at("svc", overHTTP(t, tracker(), withToken(t, func(token string) bool {
		mu.Lock()
		defer mu.Unlock()
		return token == good
	})))
	s.Credential = &creds.Ref{Source: "env", Name: "SVC_TOKEN"}
	t.Setenv("SVC_TOKEN", canary)
	r := newRig(t, s)
	if got := names(r.list(t)); got != "svc__echo" {
		t.Fatalf("tools %s: %v", got, r.Status()[0].Err)
	}
	// It is needed half way, and then it is there again.
	mu.Lock()
	good = canary + "2"
	mu.Unlock()
	for range 2 {
		if _, err := r.call("svc", "echo", "{}"); err == nil || err.Error() != "MCP server \"svc\" wants a login: run `msb mcp login svc` on the host" {
			t.Errorf("got %v", err)
		}
	}
	t.Setenv("SVC_TOKEN", canary+"2")
	if res, err := r.call("svc", "echo", `{"text":"x"}`); err != nil || res.Text != "echo:x" {
		t.Errorf("%+v %v", res, err)
	}
	t.Setenv("SVC_TOKEN", "")
	if _, err := r.call("svc", "echo", "{}"); err == nil || strings.Contains(err.Error(), "SVC_TOKEN") {
		t.Errorf("got %v", err)
	}
}

func TestRedirects(t *testing.T) {
	var stolen syncBuffer
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(&stolen, "%s %v\n", r.URL, r.Header)
	}))
	defer thief.Close()
	t.Setenv("SVC_TOKEN", canary)
	for _, code := range []int{301, 302, 303, 307, 308} {
		s := at("svc", overHTTP(t, tracker(), func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL, code) })
		}))
		s.Credential = &creds.Ref{Source: "env", Name: "SVC_TOKEN"}
		r := newRig(t, s)
		r.list(t)
		if _, err := r.call("svc", "echo", "{}"); err == nil || err.Error() != `MCP server "svc" redirects to another address, which is not followed` {
			t.Errorf("%d: %v", code, err)
		}
	}
	if stolen.String() != "" {
		t.Errorf("the other host was asked: %s", stolen.String())
	}
	// Within the origin it is followed.
	r := newRig(t, at("svc", overHTTP(t, tracker(), func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/mcp" {
				http.Redirect(w, r, "/moved", http.StatusTemporaryRedirect)
				return
			}
			h.ServeHTTP(w, r)
		})
	})))
	if got := names(r.list(t)); got != "svc__echo" {
		t.Errorf("tools %s: %v", got, r.Status()[0].Err)
	}
	// For ever is not.
	r = newRig(t, at("svc", overHTTP(t, tracker(), func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/mcp", http.StatusTemporaryRedirect)
		})
	})))
	if len(r.list(t)) != 0 || !strings.Contains(r.Status()[0].Err.Error(), "more than 10 redirects") {
		t.Errorf("%v", r.Status()[0].Err)
	}
}

func TestHundredMegabytes(t *testing.T) {
	part := strings.Repeat("x", 1<<20)
	r := newRig(t, at("svc", raw(t, func(method string, _ json.RawMessage) string {
		if method == "tools/list" {
			return `{"tools":[{"name":"big","inputSchema":{"type":"object"}}]}`
		}
		return `{"content":[{"type":"text","text":"` + strings.Repeat(part, 100) + `"}]}`
	})))
	r.list(t)
	if _, err := r.call("svc", "big", "{}"); err == nil {
		t.Error("100 MB were taken")
	} else {
		t.Log(err)
	}
	// The server is not given up.
	if got := names(r.list(t)); got != "svc__big" {
		t.Errorf("tools %s", got)
	}
}

func TestSilentServer(t *testing.T) {
	r := newRig(t, at("svc", raw(t, func(method string, _ json.RawMessage) string {
		if method == "tools/list" {
			return `{"tools":[{"name":"slow","inputSchema":{"type":"object"}}]}`
		}
		return ""
	})))
	r.list(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.callCtx(ctx, "c", "svc", "slow", "{}"); err == nil {
		t.Error("a silent server answers")
	}
}

func TestServerThatNeverSaysHello(t *testing.T) {
	hang := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // else the end of the connection goes unnoticed
		<-r.Context().Done()
	}))
	defer hang.Close()
	defer hang.CloseClientConnections()
	r := newRig(t, at("svc", hang.URL))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.List(ctx); err == nil {
		t.Error("listed")
	}
	done := make(chan struct{})
	go func() { r.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("Close hangs")
	}
}

func TestServerThatHoldsTheHandshake(t *testing.T) {
	asked := make(chan string, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		json.NewDecoder(r.Body).Decode(&m)
		asked <- m.Method
		w.Header().Set("Content-Type", "application/json")
		switch m.Method {
		case "server/discover":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x","version":"1"}}}`, m.ID)
		case "subscriptions/listen":
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	defer srv.Close()
	defer srv.CloseClientConnections()
	r := newRig(t, at("svc", srv.URL))
	go r.List(context.Background())
	for method := range asked {
		if method == "subscriptions/listen" {
			break
		}
	}
	done := make(chan struct{})
	go func() { r.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("Close hangs")
	}
}

// authServer is an authorization server and the MCP server that trusts it.
type authServer struct {
	*httptest.Server
	mu         sync.Mutex
	registered map[string]any
	codes      map[string]url.Values // code to the request for it
	forms      []url.Values          // at the token endpoint
	serial     int
	access     string // the token that is good now
	refresh    string
	methods    string
	foreign    string // resource_metadata at another origin
	late       int    // all refusals but the first wait until serial is another; 0: none waits
	refusals   int
}

func newAuthServer(t *testing.T) *authServer {
	a := &authServer{codes: map[string]url.Values{}, methods: `["S256"]`}
	mux := http.NewServeMux()
	a.Server = httptest.NewServer(mux)
	t.Cleanup(func() { a.CloseClientConnections(); a.Close() })
	reply := func(w http.ResponseWriter, format string, args ...any) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, format, args...)
	}
	inner := overHandler(tracker())
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		ok := a.access != "" && r.Header.Get("Authorization") == "Bearer "+a.access
		place := a.URL + "/.well-known/oauth-protected-resource/mcp"
		if a.foreign != "" {
			place = a.foreign
		}
		a.mu.Unlock()
		if !ok {
			a.refuseLate()
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+place+`", scope="issues:read"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
	mux.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, r *http.Request) {
		reply(w, `{"resource":%q,"authorization_servers":[%q]}`, a.URL+"/mcp", a.URL)
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, r *http.Request) {
		reply(w, `{"issuer":%[1]q,"authorization_endpoint":"%[2]s/authorize","token_endpoint":"%[2]s/token","registration_endpoint":"%[2]s/register","response_types_supported":["code"],"code_challenge_methods_supported":%[3]s,"scopes_supported":["issues:read","offline_access"]}`, a.URL, a.URL, a.methods)
	})
	mux.HandleFunc("/register", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if err := json.NewDecoder(r.Body).Decode(&a.registered); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"client_id":"client-1","token_endpoint_auth_method":"none","redirect_uris":["http://127.0.0.1/"]}`)
	})
	mux.HandleFunc("/authorize", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		q := r.URL.Query()
		a.serial++
		code := fmt.Sprint("code-", a.serial)
		a.codes[code] = q
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"code": {code}, "state": {q.Get("state")}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		r.ParseForm()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.forms = append(a.forms, r.PostForm)
		bad := ""
		switch r.PostForm.Get("grant_type") {
		case "authorization_code":
			q, ok := a.codes[r.PostForm.Get("code")]
			sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
			if !ok || base64.RawURLEncoding.EncodeToString(sum[:]) != q.Get("code_challenge") || q.Get("code_challenge_method") != "S256" || q.Get("redirect_uri") != r.PostForm.Get("redirect_uri") {
				bad = "invalid_grant"
			}
		case "refresh_token":
			if r.PostForm.Get("refresh_token") != a.refresh {
				bad = "invalid_grant"
			}
		default:
			bad = "unsupported_grant_type"
		}
		if bad != "" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":%q,"error_description":"secret words %s"}`, bad, a.refresh)
			return
		}
		a.serial++
		a.access, a.refresh = fmt.Sprintf("%s-a%d", canary, a.serial), fmt.Sprintf("%s-r%d", canary, a.serial)
		reply(w, `{"access_token":%q,"refresh_token":%q,"token_type":"bearer","expires_in":3600}`, a.access, a.refresh)
	})
	return a
}

// refuseLate holds up a refusal as long as late says.
func (a *authServer) refuseLate() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refusals++
	for first := a.refusals == 1; !first && a.late > 0 && a.serial == a.late; {
		a.mu.Unlock()
		time.Sleep(time.Millisecond)
		a.mu.Lock()
	}
}

// browser logs in as a user would.
func browser(t *testing.T) func(string) error {
	return func(u string) error {
		go func() {
			res, err := http.Get(u)
			if err != nil {
				return
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != 200 || !strings.Contains(string(b), "logged in") {
				t.Errorf("the browser shows %d %s", res.StatusCode, b)
			}
		}()
		return nil
	}
}

func TestLogin(t *testing.T) {
	keyring.MockInit()
	a := newAuthServer(t)
	s := at("svc", a.URL+"/mcp")
	r := newRig(t, s)
	if r.list(t); !strings.Contains(r.Status()[0].Err.Error(), "msb mcp login svc") {
		t.Fatalf("before the login: %v", r.Status()[0].Err)
	}
	ctx := context.Background()
	if err := mcp.Login(ctx, s, r.store, browser(t)); err != nil {
		t.Fatal(err)
	}
	if got := names(r.list(t)); got != "svc__echo" {
		t.Fatalf("tools %s: %v", got, r.Status()[0].Err)
	}
	if a.registered["client_name"] != "msb" || a.registered["token_endpoint_auth_method"] != "none" {
		t.Errorf("registered as %v", a.registered)
	}
	q := a.codes["code-1"]
	if q.Get("scope") != "issues:read offline_access" || q.Get("resource") != a.URL+"/mcp" || !strings.HasPrefix(q.Get("redirect_uri"), "http://127.0.0.1:") || len(q.Get("state")) < 20 {
		t.Errorf("asked with %v", q)
	}
	if a.forms[0].Get("resource") != a.URL+"/mcp" || a.forms[0].Get("client_id") != "client-1" {
		t.Errorf("token asked for with %v", a.forms[0])
	}

	// A token that is refused, and one that has expired, are renewed once.
	a.mu.Lock()
	a.access, a.late, a.refusals = "revoked", a.serial, 0
	a.mu.Unlock()
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			if res, err := r.call("svc", "echo", `{"text":"x"}`); err != nil || res.Text != "echo:x" {
				t.Errorf("%+v %v", res, err)
			}
		})
	}
	wait.Wait()
	if len(a.forms) != 2 || a.forms[1].Get("grant_type") != "refresh_token" || a.forms[1].Get("resource") == "" {
		t.Errorf("%d token requests", len(a.forms))
	}
	a.mu.Lock()
	a.late = 0
	a.mu.Unlock()
	l, err := r.store.Login("svc")
	if err != nil || l.Refresh.Reveal() != a.refresh {
		t.Errorf("the new refresh token is not stored: %v", err)
	}
	l.Expiry = time.Now().Add(-time.Hour)
	if err := r.store.SetLogin("svc", l); err != nil {
		t.Fatal(err)
	}
	if _, err := r.call("svc", "echo", "{}"); err != nil || len(a.forms) != 3 {
		t.Errorf("%v after %d token requests", err, len(a.forms))
	}

	// A refresh token that is refused means a new login.
	a.mu.Lock()
	a.access, a.refresh = "gone", "gone"
	a.mu.Unlock()
	if _, err := r.call("svc", "echo", "{}"); err == nil || !strings.Contains(err.Error(), "msb mcp login svc") {
		t.Errorf("got %v", err)
	}
}

func TestLoginThatMustFail(t *testing.T) {
	ctx := context.Background()
	never := func(string) error { t.Error("the browser was opened"); return nil }
	try := func(name, want string, a *authServer, s config.Server, open func(string) error) {
		t.Helper()
		store := creds.Open(t.TempDir())
		err := mcp.Login(ctx, s, store, open)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", name, err)
		}
		if list, _ := store.List(); len(list) != 0 {
			t.Errorf("%s: stored %v", name, list)
		}
	}
	a := newAuthServer(t)
	s := at("svc", a.URL+"/mcp")
	a.methods = `["plain"]`
	try("no S256", "does not support PKCE with S256", a, s, never)
	a.methods = `[]`
	try("no PKCE", "PKCE", a, s, never)
	a.methods = `["S256"]`
	a.foreign = "https://other.example/meta"
	try("foreign metadata", "another address", a, s, never)
	a.foreign = ""
	try("open server", "no login", a, at("svc", overHTTP(t, tracker(), nil)), never)
	try("stdio", "no OAuth login", a, config.Server{Name: "svc", Command: "x"}, never)
	public := s
	public.Loopback = false
	try("address of this host", "https only", a, public, never)

	wrongState := func(u string) error {
		q, _ := url.Parse(u)
		back := q.Query().Get("redirect_uri")
		go func() {
			res, err := http.Get(back + "?code=x&state=wrong")
			if err == nil {
				if res.StatusCode != http.StatusNotFound {
					t.Errorf("a wrong state gives %d", res.StatusCode)
				}
				res.Body.Close()
			}
			http.Get(back + "?error=access_denied&state=" + q.Query().Get("state"))
		}()
		return nil
	}
	try("refused", `refused: "access_denied"`, a, s, wrongState)
	wrongIssuer := func(u string) error {
		q, _ := url.Parse(u)
		go http.Get(q.Query().Get("redirect_uri") + "?code=x&iss=https%3A%2F%2Fevil.example&state=" + q.Query().Get("state"))
		return nil
	}
	try("mixed up", "not from the authorization server", a, s, wrongIssuer)
	wrongCode := func(u string) error {
		q, _ := url.Parse(u)
		go http.Get(q.Query().Get("redirect_uri") + "?code=stolen&state=" + q.Query().Get("state"))
		return nil
	}
	try("wrong code", "invalid_grant", a, s, wrongCode)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	ctx = short
	try("nobody comes", "deadline exceeded", a, s, func(string) error { return nil })
}
