package provider

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"syscall"
	"time"
)

// Failure is why a model gave no answer. Its text is for the guest: a class and
// perhaps a status, never a word that the server wrote, nor a host's name.
type Failure struct {
	Class  string
	Status int    // HTTP status; 0: it did not come that far
	Detail string // for the user of the host and its log; without the key
}

// Error is the text for the guest.
func (f *Failure) Error() string {
	if f.Status == 0 {
		return f.Class
	}
	return fmt.Sprintf("the provider answered %d (%s)", f.Status, f.Class)
}

// Explain is Error with the detail, for the user of the host.
func (f *Failure) Explain() string {
	if f.Detail == "" {
		return f.Error()
	}
	return f.Error() + ": " + f.Detail
}

// Classes of a failure.
const (
	classTooLong  = "the request is too long for the model's context window"
	classBrokeOff = "the provider's answer broke off"
	classGarbled  = "the provider's answer is garbled"
	classTooLarge = "the provider's answer is too large"
	classRedirect = "the provider redirects to another address, which is not followed"
	classHost     = "the host of the request is not allowed by the profile"
	classCutCall  = "the model's answer was cut off inside a tool call: raise max_tokens of the profile"
	classReported = "the provider reported an error in its answer"
	classOverload = "the provider is overloaded"
	classEvent    = "provider event too large"
	classEvents   = "too many provider events"
	classArgs     = "provider tool arguments too large"
)

func fail(class string) *Failure { return &Failure{Class: class} }

// silent is the failure of a server that says nothing for too long.
func silent(d time.Duration) *Failure {
	return fail(fmt.Sprintf("the provider sent nothing for %v", d))
}

// tooLong finds the ways in which servers say that a request does not fit.
var tooLong = regexp.MustCompile(`(?i)context_length_exceeded|context (length|window|size)|maximum context|prompt is too long|too many (input )?tokens|exceed_context`)

// refused is the failure of an HTTP status. body is the beginning of what came
// with it; it is looked at and not passed on.
func refused(status int, body []byte, detail string) *Failure {
	class := "error"
	switch {
	case status == http.StatusBadRequest && tooLong.Match(body), status == http.StatusRequestEntityTooLarge:
		class = classTooLong
	case status == http.StatusBadRequest, status == http.StatusUnprocessableEntity:
		class = "request refused"
	case status == http.StatusUnauthorized:
		class = "the key is not accepted"
	case status == http.StatusPaymentRequired:
		class = "payment required"
	case status == http.StatusForbidden:
		class = "forbidden"
	case status == http.StatusNotFound:
		class = "model or address not found"
	case status == http.StatusRequestTimeout:
		class = "timeout"
	case status == http.StatusTooManyRequests:
		class = "too many requests, or no quota left"
	case status == 529:
		class = "overloaded"
	case status >= 500:
		class = "server error"
	}
	return &Failure{Class: class, Status: status, Detail: detail}
}

// reported is the failure of an error event inside an answer.
func reported(raw, detail string) *Failure {
	f := &Failure{Class: classReported, Detail: detail}
	var e struct {
		Type  string `json:"type"`
		Code  any    `json:"code"`
		Error struct {
			Type string `json:"type"`
		} `json:"error"`
	}
	_ = json.Unmarshal([]byte(raw), &e) // what is no JSON has no type
	switch {
	case e.Type == "overloaded_error", e.Error.Type == "overloaded_error":
		f.Class = classOverload
	case tooLong.MatchString(raw):
		f.Class = classTooLong
	}
	return f
}

// unreachable classifies an error of the network.
func unreachable(err error, detail string) *Failure {
	class := "the provider could not be reached"
	var dns *net.DNSError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &dns):
		class += " (its name is not known)"
	case errors.Is(err, syscall.ECONNREFUSED):
		class += " (connection refused)"
	case errors.As(err, &authority), errors.As(err, &host), errors.As(err, &cert):
		class += " (its certificate is not valid)"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		class += " (timeout)"
	}
	return &Failure{Class: class, Detail: detail}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// broken classifies an error while an answer was read.
func broken(err error, detail string) *Failure {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	class := classBrokeOff
	if errors.As(err, &syntax) || errors.As(err, &kind) {
		class = classGarbled
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		class = classBrokeOff
	}
	return &Failure{Class: class, Detail: detail}
}
