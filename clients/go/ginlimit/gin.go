// Package ginlimit is middleware for Gin that checks requests with Pacegate.
package ginlimit

import (
	"net/http"

	"github.com/gin-gonic/gin"
	pacegate "github.com/pacegate/pacegate/clients/go"
)

// Middleware answers denied requests with 429, Retry-After and RateLimit. describe returns the request to check, and
// false to skip the check; nil means Attributes in the default domain. If the server rejects the check, the answer is
// 500, also with pacegate.FailOpen.
func Middleware(client *pacegate.Client, describe func(*gin.Context) (pacegate.Request, bool)) gin.HandlerFunc {
	if describe == nil {
		describe = func(c *gin.Context) (pacegate.Request, bool) { return Attributes("", c), true }
	}
	return func(c *gin.Context) {
		if len(c.Request.URL.EscapedPath()) > pacegate.MaxPathBytes {
			c.AbortWithStatusJSON(http.StatusRequestURITooLong, gin.H{"error": "path is too long"})
			return
		}
		check, applies := describe(c)
		if !applies {
			return
		}
		decision, err := client.Check(c.Request.Context(), check)
		if err != nil {
			_ = c.Error(err)
			c.AbortWithStatusJSON(http.StatusInternalServerError, gin.H{"error": "rate limit check failed"})
			return
		}
		for name, value := range pacegate.Headers(decision) {
			c.Writer.Header()[name] = []string{value}
		}
		if !decision.Allowed {
			c.AbortWithStatusJSON(http.StatusTooManyRequests, gin.H{"error": "too many requests"})
		}
	}
}

// Attributes returns the check for a request: by the attributes ip, method and path. The address is that of the
// connection. Behind a proxy, call SetTrustedProxies of Gin first, and set the attribute ip to
// pacegate.ClientNetwork(c.ClientIP()): without it Gin trusts every sender of X-Forwarded-For.
func Attributes(domain string, c *gin.Context) pacegate.Request {
	return pacegate.Attributes(domain, c.Request)
}
