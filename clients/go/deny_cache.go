package pacegate

import (
	"container/list"
	"strings"
	"sync"
	"time"
)

// denyCache holds denials that still hold, by request.
//
// The server decided after the request was sent and before its answer arrived. So a denial holds at least until the
// time of sending plus RetryAfter, and the request is admitted at the latest at the time of arrival plus RetryAfter.
type denyCache struct {
	maxEntries int
	maxAge     time.Duration
	// mutex protects the fields below.
	mutex   sync.Mutex
	entries map[string]*list.Element
	// order has the entries in the order of insertion.
	order *list.List
}

type cachedDenial struct {
	request    string
	decision   Decision
	receivedAt time.Time
	// validUntil is the time until which the denial surely holds.
	validUntil time.Time
}

func newDenyCache(maxEntries int, maxAge time.Duration) *denyCache {
	return &denyCache{maxEntries: maxEntries, maxAge: maxAge, entries: map[string]*list.Element{}, order: list.New()}
}

// get returns the denial of this request, with its times reduced by its age.
func (c *denyCache) get(request string, now time.Time) (Decision, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	element, found := c.entries[request]
	if !found {
		return Decision{}, false
	}
	entry := element.Value.(cachedDenial)
	if !now.Before(entry.validUntil) {
		c.remove(element)
		return Decision{}, false
	}
	decision := entry.decision
	passed := now.Sub(entry.receivedAt)
	decision.ResetAfter = max(0, decision.ResetAfter-passed)
	decision.Source = "deny-cache"
	if decision.RetryAfter != nil {
		retryAfter := *decision.RetryAfter - passed
		decision.RetryAfter = &retryAfter
	}
	return decision, true
}

// add adds a denial, unless a released permit or a recovered store may end it early.
func (c *denyCache) add(request string, decision Decision, sentAt, receivedAt time.Time) {
	if decision.Allowed || decision.Degraded || strings.HasSuffix(decision.Limit, "concurrency") {
		return
	}
	holds := c.maxAge
	if decision.RetryAfter != nil {
		holds = min(holds, *decision.RetryAfter)
	}
	validUntil := sentAt.Add(holds)
	if !validUntil.After(receivedAt) || c.maxEntries < 1 {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if old, found := c.entries[request]; found {
		c.remove(old)
	}
	if c.order.Len() >= c.maxEntries {
		c.remove(c.order.Front())
	}
	c.entries[request] = c.order.PushBack(cachedDenial{request, decision, receivedAt, validUntil})
}

func (c *denyCache) remove(element *list.Element) {
	delete(c.entries, element.Value.(cachedDenial).request)
	c.order.Remove(element)
}
