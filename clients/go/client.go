// Package pacegate is a client for the Pacegate rate limiter, with middleware for net/http.
package pacegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// FailureMode is the decision when Pacegate does not answer. There is no default.
type FailureMode string

const (
	// FailOpen allows the request.
	FailOpen FailureMode = "open"
	// FailClosed denies the request for a second.
	FailClosed FailureMode = "closed"
)

const (
	defaultDeadline     = 500 * time.Millisecond
	defaultMaxDenials   = 10_000
	defaultMaxDenialAge = 10 * time.Second
	maxBodyBytes        = 64 << 10
)

// Request is a request to limit: a key with its own limits, or attributes for the policies of the server.
type Request struct {
	Domain     string
	Attributes map[string]string
	Key        string
	// Limits are texts such as "100/minute". All of them must admit the request.
	Limits []string
	// Cost is the number of units to charge. Default: 1. Peek charges nothing.
	Cost uint64
	// Peek checks whether one unit would be admitted, without a charge.
	Peek bool
	// Spent records units that are already spent, in full, also beyond the limit. For Check only.
	Spent bool
	// UpTo takes as many units as there are, up to Cost. The decision has their number in Granted. For Check only.
	UpTo bool
	// ID counts a repeated request with the same id once. For Check only, with a Redis store.
	ID string
}

// Decision is the answer to Check, Reserve or Acquire.
type Decision struct {
	Allowed bool
	// Policy is the policy that decided; empty if no policy matches the request.
	Policy string
	// Limit is the limit that decided; the tightest if several apply.
	Limit string
	// Remaining is the number of units that would be admitted now; nil if no policy matches the request.
	Remaining *uint64
	// RetryAfter is the time until the same request would be allowed; nil if it is allowed, or never will be.
	RetryAfter *time.Duration
	// ResetAfter is the time until the usage is back to zero.
	ResetAfter time.Duration
	// Source is store, deny-cache, fallback, blocked, unlimited, lease or overflow.
	Source string
	// ShadowDenied is true if a policy in shadow mode would have denied the request.
	ShadowDenied bool
	// Degraded is true if a failure mode decided, on the server or in this client.
	Degraded bool
	// Revision is the number of the server's configuration; 0 if this client decided.
	Revision uint64
	// Granted is the number of units that a check with UpTo has taken; nil for other calls.
	Granted *uint64
	// Permit is the permit of Acquire; empty if no units are held.
	Permit string
	// Reservation is the reservation of Reserve; empty if the request was denied, or the failure mode decided.
	Reservation string
}

// Error is returned if the server rejects a request, for example because of an invalid limit or API key.
type Error struct {
	Status int
	// Type is the problem type, for example urn:pacegate:problem:limit.
	Type string
	// Detail is the server's explanation.
	Detail string
}

func (e *Error) Error() string {
	detail := e.Detail
	if detail == "" {
		detail = "no details"
	}
	return fmt.Sprintf("pacegate rejected the request with status %d: %s", e.Status, detail)
}

// Options configures a client. URL and Failure are required.
type Options struct {
	// URL is the address of the server, for example http://127.0.0.1:8080.
	URL     string
	Failure FailureMode
	APIKey  string
	// Deadline of a check. Default: 500 ms. A context can make it shorter.
	Deadline time.Duration
	// MaxDenials is the maximum number of cached denials. Default: 10,000.
	MaxDenials int
	// MaxDenialAge is the maximum age of a cached denial. Default: 10 s. A negative age turns the cache off.
	MaxDenialAge time.Duration
	// OnUnavailable is called when the failure mode decides, with the reason.
	OnUnavailable func(error)
	// Transport replaces the HTTP transport. Default: a copy of http.DefaultTransport with 32 idle connections.
	Transport http.RoundTripper
	// Now replaces the clock.
	Now func() time.Time
}

// Client is a client of one Pacegate server. It is safe for concurrent use: create one and share it.
type Client struct {
	options Options
	url     string
	http    http.Client
	denials *denyCache
}

// New creates a client.
func New(options Options) (*Client, error) {
	if options.Failure != FailOpen && options.Failure != FailClosed {
		return nil, fmt.Errorf("invalid failure mode %q: expected open or closed", options.Failure)
	}
	if !strings.HasPrefix(options.URL, "http://") && !strings.HasPrefix(options.URL, "https://") {
		return nil, fmt.Errorf("invalid URL %q: expected http://HOST:PORT or https://HOST:PORT", options.URL)
	}
	if options.Deadline == 0 {
		options.Deadline = defaultDeadline
	}
	if options.MaxDenials == 0 {
		options.MaxDenials = defaultMaxDenials
	}
	if options.MaxDenialAge == 0 {
		options.MaxDenialAge = defaultMaxDenialAge
	}
	if options.Transport == nil {
		options.Transport = newTransport()
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Client{
		options: options,
		url:     strings.TrimRight(options.URL, "/") + "/v1/",
		http: http.Client{
			Transport:     options.Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		denials: newDenyCache(options.MaxDenials, options.MaxDenialAge),
	}, nil
}

// newTransport returns a copy of http.DefaultTransport, or a new transport if the program has replaced it by another
// type.
func newTransport() *http.Transport {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, IdleConnTimeout: 90 * time.Second}
	if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		transport = standard.Clone()
	}
	transport.MaxIdleConnsPerHost = 32
	return transport
}

// Check checks and charges a request. A denial is a value. If Pacegate does not answer within the deadline, the failure
// mode decides. The error is an *Error if the server rejects the request, or the error of ctx if ctx has ended.
func (c *Client) Check(ctx context.Context, request Request) (Decision, error) {
	body, err := encode(request)
	if err != nil {
		return Decision{}, err
	}
	sentAt := c.options.Now()
	// Units that are already spent must be recorded.
	mayBeCached := request.ID == "" && !request.Spent
	if mayBeCached {
		if decision, ok := c.denials.get(string(body), sentAt); ok {
			return decision, nil
		}
	}
	decision, err := c.decide(ctx, "check", body, request)
	if err == nil && mayBeCached {
		c.denials.add(string(body), decision, sentAt, c.options.Now())
	}
	return decision, err
}

// decide sends a request to an endpoint that returns a decision. The failure mode decides without an answer.
func (c *Client) decide(ctx context.Context, call string, body []byte, request Request) (Decision, error) {
	status, text, err := c.send(ctx, call, body)
	var decision Decision
	if err == nil {
		decision, err = decode(status, text)
	}
	var rejected *Error
	switch {
	case errors.As(err, &rejected):
		return Decision{}, err
	case err != nil && ctx.Err() != nil:
		return Decision{}, ctx.Err()
	case err != nil:
		if c.options.OnUnavailable != nil {
			c.options.OnUnavailable(err)
		}
		return fallback(c.options.Failure, request), nil
	}
	return decision, nil
}

func (c *Client) send(ctx context.Context, call string, body []byte) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Deadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+call, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if c.options.APIKey != "" {
		request.Header.Set("Authorization", "Bearer "+c.options.APIKey)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxBodyBytes))
	return response.StatusCode, answer, err
}

// encode returns the JSON of a request. Equal requests have equal texts, because maps are sorted.
func encode(request Request) ([]byte, error) {
	return json.Marshal(request.members())
}

func (r Request) members() map[string]any {
	members := map[string]any{}
	if len(r.Limits) > 0 {
		members["key"], members["limit"] = r.Key, r.Limits
	}
	if r.Domain != "" {
		members["domain"] = r.Domain
	}
	if r.Attributes != nil {
		members["attributes"] = r.Attributes
	} else if len(r.Limits) == 0 {
		members["attributes"] = map[string]string{}
	}
	if r.Peek {
		members["cost"] = 0
	} else if r.Cost != 0 {
		members["cost"] = r.Cost
	}
	if r.Spent {
		members["spent"] = true
	}
	if r.UpTo {
		members["up_to"] = true
	}
	if r.ID != "" {
		members["id"] = r.ID
	}
	return members
}

type answer struct {
	Allowed      *bool    `json:"allowed"`
	Policy       *string  `json:"policy"`
	Limit        *string  `json:"limit"`
	Remaining    *uint64  `json:"remaining"`
	RetryAfter   *float64 `json:"retry_after"`
	ResetAfter   float64  `json:"reset_after"`
	Source       string   `json:"source"`
	ShadowDenied bool     `json:"shadow_denied"`
	Degraded     bool     `json:"degraded"`
	Revision     uint64   `json:"revision"`
	Granted      *uint64  `json:"granted"`
	Permit       string   `json:"permit"`
	Reservation  string   `json:"reservation"`
}

func (a answer) decision() Decision {
	decision := Decision{
		Allowed: *a.Allowed, Remaining: a.Remaining, ResetAfter: seconds(a.ResetAfter), Source: a.Source,
		ShadowDenied: a.ShadowDenied, Degraded: a.Degraded, Revision: a.Revision,
		Granted: a.Granted, Permit: a.Permit, Reservation: a.Reservation,
	}
	if a.Policy != nil {
		decision.Policy = *a.Policy
	}
	if a.Limit != nil {
		decision.Limit = *a.Limit
	}
	if a.RetryAfter != nil {
		retryAfter := seconds(*a.RetryAfter)
		decision.RetryAfter = &retryAfter
	}
	return decision
}

func decode(status int, body []byte) (Decision, error) {
	if status >= 400 && status < 500 && status != http.StatusTooManyRequests {
		return Decision{}, rejection(status, body)
	}
	var parsed answer
	isDecision := json.Unmarshal(body, &parsed) == nil && parsed.Allowed != nil
	if !isDecision || status != http.StatusOK && status != http.StatusTooManyRequests {
		return Decision{}, fmt.Errorf("the server answered %d without a decision", status)
	}
	return parsed.decision(), nil
}

func rejection(status int, body []byte) *Error {
	var problem struct{ Type, Detail string }
	// A body that is no problem leaves the fields empty.
	_ = json.Unmarshal(body, &problem)
	return &Error{Status: status, Type: problem.Type, Detail: problem.Detail}
}

// seconds converts to a duration, rounded to the microseconds of the server.
func seconds(value float64) time.Duration {
	return time.Duration(value*1e6+0.5) * time.Microsecond
}

func fallback(failure FailureMode, request Request) Decision {
	decision := Decision{Allowed: failure == FailOpen, Source: "fallback", Degraded: true}
	granted := uint64(0)
	if decision.Allowed {
		granted = max(1, request.Cost)
	} else {
		second := time.Second
		decision.RetryAfter = &second
	}
	if request.UpTo {
		decision.Granted = &granted
	}
	return decision
}
