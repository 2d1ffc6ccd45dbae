package io.pacegate.client;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Denials that still hold, by request. The server decided after the request was sent and before its answer arrived. So a
 * denial holds at least until the time of sending plus {@code retryAfter}, and the request is admitted at the latest at
 * the time of arrival plus {@code retryAfter}. Times are nanoseconds of a monotonic clock.
 */
final class DenyCache {
    private record Entry(Decision decision, long sentAt, long receivedAt, long holdsNanos) {}

    private final int maxEntries;
    private final long maxAgeNanos;
    /** In the order of insertion. Protected by the monitor of this object. */
    private final Map<String, Entry> entries = new LinkedHashMap<>();

    DenyCache(int maxEntries, Duration maxAge) {
        this.maxEntries = maxEntries;
        this.maxAgeNanos = maxAge.toNanos();
    }

    /** Returns the denial of this request with its times reduced by its age, or null. */
    Decision get(String request, long now) {
        Entry entry;
        synchronized (this) {
            entry = entries.get(request);
            if (entry == null) return null;
            if (now - entry.sentAt >= entry.holdsNanos) {
                entries.remove(request);
                return null;
            }
        }
        return entry.decision.cachedFor(Duration.ofNanos(now - entry.receivedAt));
    }

    /** Adds a denial, unless a released permit or a recovered store may end it early. */
    void add(String request, Decision decision, long sentAt, long receivedAt) {
        boolean mayEndEarly = decision.degraded() || (decision.limit() != null && decision.limit().endsWith("concurrency"));
        if (decision.allowed() || mayEndEarly) return;
        Duration retryAfter = decision.retryAfter();
        boolean isShort = retryAfter != null && retryAfter.compareTo(Duration.ofNanos(maxAgeNanos)) < 0;
        long holds = isShort ? retryAfter.toNanos() : maxAgeNanos;
        if (receivedAt - sentAt >= holds || maxEntries < 1) return;
        synchronized (this) {
            entries.remove(request);
            if (entries.size() >= maxEntries) entries.remove(entries.keySet().iterator().next());
            entries.put(request, new Entry(decision, sentAt, receivedAt, holds));
        }
    }
}
