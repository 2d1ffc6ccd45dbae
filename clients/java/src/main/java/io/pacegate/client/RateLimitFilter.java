package io.pacegate.client;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;

/**
 * A servlet filter for Spring and Jakarta EE. Answers denied requests with 429, {@code Retry-After} and {@code
 * RateLimit}. If the server rejects a check, the filter throws {@link PacegateException}, also with {@link
 * FailureMode#OPEN}.
 */
public final class RateLimitFilter implements Filter {
    /** Longest path that the server accepts as an attribute. */
    private static final int MAX_PATH_BYTES = 1024;

    private final Pacegate client;
    private final Function<HttpServletRequest, Optional<CheckRequest>> describe;

    /** Creates a filter that checks the attributes {@code ip}, {@code method} and {@code path} in a domain. */
    public static RateLimitFilter forDomain(Pacegate client, String domain) {
        return new RateLimitFilter(client, request -> Optional.of(attributes(request).inDomain(domain)));
    }

    /** Creates a filter with a function that returns the request to check; empty skips the check. */
    public RateLimitFilter(Pacegate client, Function<HttpServletRequest, Optional<CheckRequest>> describe) {
        this.client = client;
        this.describe = describe;
    }

    /** Returns the check for a request: by the attributes {@code ip}, {@code method} and {@code path}. */
    public static CheckRequest attributes(HttpServletRequest request) {
        return CheckRequest.forAttributes(Map.of(
                "ip", HttpRules.clientNetwork(request.getRemoteAddr()),
                "method", request.getMethod(),
                "path", request.getRequestURI()));
    }

    @Override
    public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        HttpServletResponse answer = (HttpServletResponse) response;
        HttpServletRequest http = (HttpServletRequest) request;
        if (http.getRequestURI().getBytes(StandardCharsets.UTF_8).length > MAX_PATH_BYTES) {
            write(answer, 414, "path is too long");
            return;
        }
        Optional<CheckRequest> check = describe.apply(http);
        if (check.isPresent()) {
            Decision decision = client.check(check.get());
            HttpRules.headers(decision).forEach(answer::setHeader);
            if (!decision.allowed()) {
                write(answer, 429, "too many requests");
                return;
            }
        }
        chain.doFilter(request, response);
    }

    private static void write(HttpServletResponse response, int status, String error) throws IOException {
        response.setStatus(status);
        response.setContentType("application/json");
        response.getWriter().write("{\"error\":\"" + error + "\"}");
    }
}
