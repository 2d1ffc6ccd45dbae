package pacegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var unique = fmt.Sprintf("go-%d-%d", os.Getpid(), time.Now().UnixNano())

// patient returns a client of the real server, and skips the test if there is none.
func patient(t *testing.T) (*Client, string) {
	t.Helper()
	url := os.Getenv("PACEGATE_URL")
	if url == "" {
		t.Skip("PACEGATE_URL is not set")
	}
	client, err := New(Options{URL: url, Failure: FailOpen, Deadline: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return client, url
}

func requests(t *testing.T, url string) int {
	t.Helper()
	response, err := http.Get(url + "/v1/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var stats struct{ Listeners []struct{ Requests int } }
	if err := json.NewDecoder(response.Body).Decode(&stats); err != nil {
		t.Fatal(err)
	}
	return stats.Listeners[0].Requests
}

func TestADeniedFloodStaysInTheProcess(t *testing.T) {
	client, url := patient(t)
	before := requests(t, url)
	var allowed atomic.Int64
	var workers sync.WaitGroup
	for range 20 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for range 5000 {
				decision, err := client.Check(context.Background(), Request{Key: unique, Limits: []string{"5/day"}})
				if err != nil || decision.Degraded {
					t.Errorf("%+v %v", decision, err)
				}
				if decision.Allowed {
					allowed.Add(1)
				}
			}
		}()
	}
	workers.Wait()
	sent := requests(t, url) - before
	t.Logf("100,000 calls, %d allowed, %d requests to the server", allowed.Load(), sent)
	// A day may end during the test.
	if n := allowed.Load(); n != 5 && n != 10 {
		t.Errorf("%d allowed", n)
	}
	if sent >= 1000 {
		t.Errorf("%d requests", sent)
	}
}

func TestMiddleware(t *testing.T) {
	client, _ := patient(t)
	limit := client.Middleware(func(*http.Request) (Request, bool) {
		return Request{Key: unique + "-http", Limits: []string{"2/day"}}, true
	})
	hello := http.HandlerFunc(func(writer http.ResponseWriter, _ *http.Request) { fmt.Fprint(writer, "hello") })
	get := func(path string) *httptest.ResponseRecorder {
		recorder := httptest.NewRecorder()
		limit(hello).ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		return recorder
	}
	for _, status := range []int{200, 200, 429} {
		answer := get("/")
		if answer.Code != status || answer.Result().Header["RateLimit"] == nil {
			t.Errorf("%d %v, expected %d", answer.Code, answer.Result().Header, status)
		}
	}
	if answer := get("/"); answer.Header().Get("Retry-After") == "" || answer.Body.String() != `{"error":"too many requests"}` {
		t.Errorf("%v %s", answer.Header(), answer.Body)
	}
	if answer := get("/" + strings.Repeat("x", MaxPathBytes)); answer.Code != 414 {
		t.Errorf("%d, expected 414", answer.Code)
	}
}

func TestASilentServerIsBoundedByTheDeadline(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		// The server notices a closed connection only after the body was read.
		_, _ = io.Copy(io.Discard, request.Body)
		<-request.Context().Done()
	}))
	defer silent.Close()
	for failure, allowed := range map[FailureMode]bool{FailOpen: true, FailClosed: false} {
		var reason error
		client, err := New(Options{
			URL: silent.URL, Failure: failure, Deadline: 50 * time.Millisecond, OnUnavailable: func(err error) { reason = err },
		})
		if err != nil {
			t.Fatal(err)
		}
		decision, err := client.Check(context.Background(), Request{Attributes: map[string]string{"user": "alice"}})
		if err != nil || decision.Allowed != allowed || !decision.Degraded || !errors.Is(reason, context.DeadlineExceeded) {
			t.Errorf("%+v %v %v", decision, err, reason)
		}
	}
}

func TestAFailureModeIsRequired(t *testing.T) {
	if _, err := New(Options{URL: "http://127.0.0.1:8080"}); err == nil {
		t.Error("created a client without a failure mode")
	}
}

type otherTransport struct{ http.RoundTripper }

func TestADefaultTransportOfAnotherTypeIsNotCopied(t *testing.T) {
	standard := http.DefaultTransport
	http.DefaultTransport = otherTransport{standard}
	defer func() { http.DefaultTransport = standard }()
	if _, err := New(Options{URL: "http://127.0.0.1:1", Failure: FailOpen}); err != nil {
		t.Error(err)
	}
}
