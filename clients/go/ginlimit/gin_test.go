package ginlimit

import (
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	pacegate "github.com/pacegate/pacegate/clients/go"
)

func TestGin(t *testing.T) {
	url := os.Getenv("PACEGATE_URL")
	if url == "" {
		t.Skip("PACEGATE_URL is not set")
	}
	client, err := pacegate.New(pacegate.Options{URL: url, Failure: pacegate.FailOpen, Deadline: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("gin-%d-%d", os.Getpid(), time.Now().UnixNano())
	gin.SetMode(gin.TestMode)
	router := gin.New()
	router.Use(Middleware(client, func(*gin.Context) (pacegate.Request, bool) {
		return pacegate.Request{Key: key, Limits: []string{"2/day"}}, true
	}))
	router.GET("/", func(c *gin.Context) { c.String(200, "hello") })
	get := func(path string) *httptest.ResponseRecorder {
		recorder := httptest.NewRecorder()
		router.ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
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
	if answer := get("/" + strings.Repeat("x", pacegate.MaxPathBytes)); answer.Code != 414 {
		t.Errorf("%d, expected 414", answer.Code)
	}
}

func TestForgedHeadersDoNotChangeTheAddress(t *testing.T) {
	gin.SetMode(gin.TestMode)
	router := gin.New()
	router.GET("/", func(c *gin.Context) { c.String(200, Attributes("shop", c).Attributes["ip"]) })
	request := httptest.NewRequest("GET", "/", nil)
	request.RemoteAddr = "192.0.2.1:1234"
	request.Header.Set("X-Forwarded-For", "203.0.113.7")
	request.Header.Set("X-Real-IP", "203.0.113.7")
	recorder := httptest.NewRecorder()
	router.ServeHTTP(recorder, request)
	if ip := recorder.Body.String(); ip != "192.0.2.1" {
		t.Errorf("counted by %s", ip)
	}
}
