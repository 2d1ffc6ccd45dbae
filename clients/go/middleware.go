package pacegate

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// MaxPathBytes is the length of the longest path that the server accepts as an attribute.
const MaxPathBytes = 1024

var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Middleware answers denied requests with 429, Retry-After and RateLimit. describe returns the request to check, and
// false to skip the check; nil means Attributes in the default domain. If the server rejects the check, the answer is
// 500, also with FailOpen.
func (c *Client) Middleware(describe func(*http.Request) (Request, bool)) func(http.Handler) http.Handler {
	if describe == nil {
		describe = func(request *http.Request) (Request, bool) { return Attributes("", request), true }
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
			if len(request.URL.EscapedPath()) > MaxPathBytes {
				writeError(writer, http.StatusRequestURITooLong, "path is too long")
				return
			}
			check, applies := describe(request)
			if !applies {
				next.ServeHTTP(writer, request)
				return
			}
			decision, err := c.Check(request.Context(), check)
			if err != nil {
				writeError(writer, http.StatusInternalServerError, "rate limit check failed")
				return
			}
			for name, value := range Headers(decision) {
				// Not Set, which would write Ratelimit.
				writer.Header()[name] = []string{value}
			}
			if !decision.Allowed {
				writeError(writer, http.StatusTooManyRequests, "too many requests")
				return
			}
			next.ServeHTTP(writer, request)
		})
	}
}

// Attributes returns the check for a request: by the attributes ip, method and path.
func Attributes(domain string, request *http.Request) Request {
	address, _, err := net.SplitHostPort(request.RemoteAddr)
	if err != nil {
		address = request.RemoteAddr
	}
	return Request{Domain: domain, Attributes: map[string]string{
		"ip": ClientNetwork(address), "method": request.Method, "path": request.URL.EscapedPath(),
	}}
}

// Headers returns the response headers for a decision: RateLimit, and Retry-After if the request may be retried.
func Headers(decision Decision) map[string]string {
	headers := map[string]string{}
	after := decision.RetryAfter
	if decision.Allowed {
		after = &decision.ResetAfter
	}
	effective := ""
	if after != nil {
		whole := max(1, (*after+time.Second-1)/time.Second)
		effective = fmt.Sprintf(";t=%d", whole)
		if !decision.Allowed {
			headers["Retry-After"] = fmt.Sprint(int64(whole))
		}
	}
	if decision.Policy != "" && decision.Remaining != nil {
		headers["RateLimit"] = fmt.Sprintf("%q;r=%d%s", decision.Policy, *decision.Remaining, effective)
	}
	return headers
}

// ClientNetwork returns the address to count a client by. IPv4 addresses, also those written as IPv6, stay whole. Of an
// IPv6 address only the first 64 bits count, because one client usually has the whole network.
func ClientNetwork(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	ip = ip.WithZone("").Unmap()
	if ip.Is4() {
		return ip.String()
	}
	if nat64.Contains(ip) {
		bytes := ip.As16()
		return netip.AddrFrom4([4]byte(bytes[12:])).String()
	}
	return netip.PrefixFrom(ip, 64).Masked().Addr().String()
}

func writeError(writer http.ResponseWriter, status int, text string) {
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(status)
	fmt.Fprintf(writer, "{\"error\":%q}", text)
}
