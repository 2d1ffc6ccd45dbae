package io.pacegate.client;

import java.time.Duration;

/**
 * The answer to a check, {@code reserve} or {@code acquire}.
 *
 * @param allowed true if the request is allowed
 * @param policy the policy that decided; null if no policy matches the request
 * @param limit the limit that decided; the tightest if several apply; null if no policy matches the request
 * @param remaining units that would be admitted now; null if no policy matches the request
 * @param retryAfter time until the same request would be allowed; null if it is allowed, or never will be
 * @param resetAfter time until the usage is back to zero
 * @param source {@code store}, {@code deny-cache}, {@code fallback}, {@code blocked}, {@code unlimited}, {@code lease}
 *     or {@code overflow}
 * @param shadowDenied true if a policy in shadow mode would have denied the request
 * @param degraded true if a failure mode decided, on the server or in this client
 * @param revision number of the server's configuration; 0 if this client decided
 * @param granted units that a check with {@code upTo} has taken; null for other calls
 * @param permit the permit of {@code acquire}; null if no units are held
 * @param reservation the reservation of {@code reserve}; null if the request was denied, or the failure mode decided
 */
public record Decision(
        boolean allowed,
        String policy,
        String limit,
        Long remaining,
        Duration retryAfter,
        Duration resetAfter,
        String source,
        boolean shadowDenied,
        boolean degraded,
        long revision,
        Long granted,
        String permit,
        String reservation) {

    static Decision fallback(FailureMode failure, CheckRequest request) {
        boolean allowed = failure == FailureMode.OPEN;
        Duration retryAfter = allowed ? null : Duration.ofSeconds(1);
        Long granted = !request.isUpTo() ? null : allowed ? request.cost() : 0;
        return new Decision(
                allowed, null, null, null, retryAfter, Duration.ZERO, "fallback", false, true, 0, granted, null, null);
    }

    /** Returns the same denial after some time. */
    Decision cachedFor(Duration age) {
        Duration retry = retryAfter == null ? null : retryAfter.minus(age);
        Duration reset = resetAfter.compareTo(age) > 0 ? resetAfter.minus(age) : Duration.ZERO;
        return new Decision(
                allowed, policy, limit, remaining, retry, reset, "deny-cache", shadowDenied, degraded, revision,
                granted, permit, reservation);
    }
}
