package pacegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"reflect"
	"testing"
	"time"
)

type vectors struct {
	Checks []struct {
		Name    string
		Options struct {
			Failure        FailureMode
			MaxDenials     int    `json:"max_denials"`
			MaxDenialAgeMs *int64 `json:"max_denial_age_ms"`
		}
		Steps []step
	}
	Headers []struct {
		Decision answer
		Headers  map[string]string
	}
	Addresses [][2]string
}

type step struct {
	AtMs        int64           `json:"at_ms"`
	Call        string          `json:"call"`
	Request     vectorRequest   `json:"request"`
	Sent        *map[string]any `json:"sent"`
	Server      *scriptedAnswer `json:"server"`
	Decision    *answer         `json:"decision"`
	Error       *Error          `json:"error"`
	Unavailable bool            `json:"unavailable"`
	Result      any             `json:"result"`
}

type scriptedAnswer struct {
	Fails  bool
	Status int
	TookMs int64 `json:"took_ms"`
	Text   *string
	Body   json.RawMessage
}

type vectorRequest struct {
	Domain     string
	Attributes map[string]string
	Key        string
	Limit      any
	Cost       uint64
	Spent      bool
	UpTo       bool `json:"up_to"`
	ID         string
	// Arguments of the calls that are not checks.
	TTL         time.Duration
	Reservation string
	Used        uint64
	Permit      string
}

func (r vectorRequest) request() Request {
	request := Request{
		Domain: r.Domain, Attributes: r.Attributes, Key: r.Key, Cost: r.Cost, Spent: r.Spent, UpTo: r.UpTo, ID: r.ID,
	}
	switch limit := r.Limit.(type) {
	case string:
		request.Limits = []string{limit}
	case []any:
		for _, one := range limit {
			request.Limits = append(request.Limits, one.(string))
		}
	}
	return request
}

func read(t *testing.T) vectors {
	t.Helper()
	file := os.Getenv("PACEGATE_VECTORS")
	if file == "" {
		file = "../vectors.json"
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all vectors
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// script answers from the vectors and advances the clock.
type script struct {
	t    *testing.T
	now  time.Time
	next *scriptedAnswer
	sent []map[string]any
	path string
}

func (s *script) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.String() != "http://pacegate.test/v1/"+s.path {
		s.t.Errorf("sent to %s", request.URL)
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	var sent map[string]any
	if err := json.Unmarshal(body, &sent); err != nil {
		return nil, err
	}
	// This client always sends a list of limits.
	if limits, isList := sent["limit"].([]any); isList && len(limits) == 1 {
		sent["limit"] = limits[0]
	}
	s.sent = append(s.sent, sent)
	if s.next == nil || s.next.Fails {
		return nil, errors.New("connection refused")
	}
	s.now = s.now.Add(time.Duration(s.next.TookMs) * time.Millisecond)
	text := []byte(s.next.Body)
	if s.next.Text != nil {
		text = []byte(*s.next.Text)
	}
	return &http.Response{StatusCode: s.next.Status, Body: io.NopCloser(bytes.NewReader(text)), Header: http.Header{}}, nil
}

// call runs the method of a step. The result of a call that returns nothing is nil.
func (s step) call(client *Client) (any, error) {
	ctx, request := context.Background(), s.Request.request()
	switch s.Call {
	case "reserve":
		return client.Reserve(ctx, request, s.Request.TTL*time.Second)
	case "settle":
		return client.Settle(ctx, s.Request.Reservation, s.Request.Used)
	case "cancel":
		return client.Cancel(ctx, s.Request.Reservation)
	case "acquire":
		return client.Acquire(ctx, request)
	case "renew":
		return client.Renew(ctx, request, s.Request.Permit)
	case "release":
		return nil, client.Release(ctx, request, s.Request.Permit)
	case "refund":
		limits, err := client.Refund(ctx, request)
		return float64(limits), err
	default:
		return client.Check(ctx, request)
	}
}

// check compares a result with the expected one.
func (s step) check(t *testing.T, result any, err error) {
	t.Helper()
	var rejected *Error
	switch {
	case s.Error != nil:
		if !errors.As(err, &rejected) || *rejected != *s.Error {
			t.Errorf("at %d ms: %v, expected %v", s.AtMs, err, s.Error)
		}
		return
	case s.Unavailable:
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("at %d ms: %v, expected %v", s.AtMs, err, ErrUnavailable)
		}
		return
	}
	expected := s.Result
	if s.Decision != nil {
		expected = s.Decision.decision()
	}
	if err != nil || !reflect.DeepEqual(result, expected) {
		t.Errorf("at %d ms: %+v %v, expected %+v", s.AtMs, result, err, expected)
	}
}

func TestVectors(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	for _, vector := range read(t).Checks {
		t.Run(vector.Name, func(t *testing.T) {
			server := &script{t: t}
			options := Options{
				URL: "http://pacegate.test/", Failure: vector.Options.Failure, MaxDenials: vector.Options.MaxDenials,
				Transport: server, Now: func() time.Time { return server.now },
			}
			if age := vector.Options.MaxDenialAgeMs; age != nil {
				options.MaxDenialAge = time.Duration(*age) * time.Millisecond
				if *age == 0 {
					options.MaxDenialAge = -1
				}
			}
			client, err := New(options)
			if err != nil {
				t.Fatal(err)
			}
			for _, step := range vector.Steps {
				server.now = start.Add(time.Duration(step.AtMs) * time.Millisecond)
				server.next, server.sent = step.Server, nil
				server.path = step.Call
				if server.path == "" {
					server.path = "check"
				}
				result, err := step.call(client)
				step.check(t, result, err)
				var expected []map[string]any
				if step.Sent != nil {
					expected = append(expected, *step.Sent)
				}
				if !reflect.DeepEqual(server.sent, expected) {
					t.Errorf("at %d ms: sent %v, expected %v", step.AtMs, server.sent, expected)
				}
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	for _, row := range read(t).Headers {
		if headers := Headers(row.Decision.decision()); !reflect.DeepEqual(headers, row.Headers) {
			t.Errorf("%v, expected %v", headers, row.Headers)
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, row := range read(t).Addresses {
		if network := ClientNetwork(row[0]); network != row[1] {
			t.Errorf("%s: %s, expected %s", row[0], network, row[1])
		}
	}
}
