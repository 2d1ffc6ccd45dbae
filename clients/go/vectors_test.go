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
	AtMs     int64           `json:"at_ms"`
	Request  vectorRequest   `json:"request"`
	Sent     *map[string]any `json:"sent"`
	Server   *scriptedAnswer `json:"server"`
	Decision *answer         `json:"decision"`
	Error    *Error          `json:"error"`
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
	ID         string
}

func (r vectorRequest) request() Request {
	request := Request{Domain: r.Domain, Attributes: r.Attributes, Key: r.Key, Cost: r.Cost, ID: r.ID}
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
}

func (s *script) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.String() != "http://pacegate.test/v1/check" {
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
				decision, err := client.Check(context.Background(), step.Request.request())
				if step.Error != nil {
					var rejected *Error
					if !errors.As(err, &rejected) || *rejected != *step.Error {
						t.Errorf("at %d ms: %v, expected %v", step.AtMs, err, step.Error)
					}
				} else if expected := step.Decision.decision(); err != nil || !reflect.DeepEqual(decision, expected) {
					t.Errorf("at %d ms: %+v %v, expected %+v", step.AtMs, decision, err, expected)
				}
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
