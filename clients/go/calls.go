package pacegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// ErrUnavailable is returned if the server does not answer Settle, Cancel, Renew, Release or Refund within the deadline.
var ErrUnavailable = errors.New("pacegate did not answer")

// Reserve charges an estimate, the cost of the request. End the Reservation of the decision with Settle or Cancel.
// After the ttl (0: five minutes) the reservation ends, and the estimate stays charged. The failure mode and errors
// apply as in Check.
func (c *Client) Reserve(ctx context.Context, request Request, ttl time.Duration) (Decision, error) {
	members := request.members()
	if ttl > 0 {
		members["ttl"] = int64((ttl + time.Second - 1) / time.Second)
	}
	return c.decideMembers(ctx, "reserve", members, request)
}

// Settle ends a reservation with the units that were used. It returns false if the reservation was not open, or is
// empty. After ErrUnavailable, repeat the call: it counts once.
func (c *Client) Settle(ctx context.Context, reservation string, used uint64) (bool, error) {
	return c.end(ctx, "settle", map[string]any{"reservation": reservation, "used": used})
}

// Cancel ends a reservation of which nothing was used. It returns like Settle.
func (c *Client) Cancel(ctx context.Context, reservation string) (bool, error) {
	return c.end(ctx, "cancel", map[string]any{"reservation": reservation})
}

// Acquire takes a unit of a concurrency limit. End the Permit of the decision with Release. The failure mode and errors
// apply as in Check.
func (c *Client) Acquire(ctx context.Context, request Request) (Decision, error) {
	return c.decideMembers(ctx, "acquire", request.members(), request)
}

// Renew restarts the period of a permit of this request. It returns false if the permit has ended, and true for an empty
// permit, which holds nothing.
func (c *Client) Renew(ctx context.Context, request Request, permit string) (bool, error) {
	err := c.changePermit(ctx, "renew", request, permit)
	var rejected *Error
	if errors.As(err, &rejected) && rejected.Status == http.StatusConflict {
		return false, nil
	}
	return err == nil, err
}

// Release ends a permit of this request. An empty permit holds nothing.
func (c *Client) Release(ctx context.Context, request Request, permit string) error {
	return c.changePermit(ctx, "release", request, permit)
}

// Refund returns the units of a request, and the number of limits. It needs an API key with the scope admin. After
// ErrUnavailable, the units may have been returned or not.
func (c *Client) Refund(ctx context.Context, request Request) (uint64, error) {
	var answer struct{ Limits uint64 }
	err := c.post(ctx, "refund", request.members(), &answer)
	return answer.Limits, err
}

func (c *Client) decideMembers(
	ctx context.Context, call string, members map[string]any, request Request,
) (Decision, error) {
	body, err := json.Marshal(members)
	if err != nil {
		return Decision{}, err
	}
	return c.decide(ctx, call, body, request)
}

func (c *Client) end(ctx context.Context, call string, members map[string]any) (bool, error) {
	if members["reservation"] == "" {
		return false, nil
	}
	var answer struct{ Settled bool }
	err := c.post(ctx, call, members, &answer)
	return answer.Settled, err
}

func (c *Client) changePermit(ctx context.Context, call string, request Request, permit string) error {
	if permit == "" {
		return nil
	}
	members := request.members()
	members["permit"] = permit
	var answer struct{}
	return c.post(ctx, call, members, &answer)
}

func (c *Client) post(ctx context.Context, call string, members map[string]any, answer any) error {
	body, err := json.Marshal(members)
	if err != nil {
		return err
	}
	status, text, err := c.send(ctx, call, body)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case status >= 400 && status < 500:
		return rejection(status, text)
	case status != http.StatusOK || json.Unmarshal(text, answer) != nil:
		return fmt.Errorf("%w: status %d from /v1/%s", ErrUnavailable, status, call)
	}
	return nil
}
