// Copy this file into your application, add its package, and import the starter's three types.

import io.pacegate.client.CheckRequest;
import io.pacegate.client.Decision;
import io.pacegate.client.Pacegate;
import java.time.Duration;

/** The limiter of the Spring starter, decided by Pacegate. */
public class PacegateRateLimiter implements RateLimiter {
    private final Pacegate client;

    public PacegateRateLimiter(Pacegate client) {
        this.client = client;
    }

    @Override
    public RateLimitDecision evaluate(String key, RateLimitPolicy policy) {
        String limit = policy.getLimit() + "/" + policy.getWindow().toMillis() + "ms";
        Decision decision = client.check(CheckRequest.forKey(key, limit));
        Duration retry = decision.retryAfter();
        long millis = decision.allowed() ? 0 : retry == null ? -1 : retry.plusNanos(999_999).toMillis();
        return new RateLimitDecision(decision.allowed(), millis, retry, decision.resetAfter());
    }
}
