package io.pacegate.client;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;

/** A request to check: a key with its own limits, or attributes for the policies of the server. Immutable. */
public final class CheckRequest {
    private final Map<String, Object> members;

    private CheckRequest(Map<String, Object> members) {
        this.members = members;
    }

    /** Creates a request for a key with limits such as {@code 100/minute}, which all must admit it. */
    public static CheckRequest forKey(String key, String... limits) {
        Objects.requireNonNull(key, "key");
        if (limits.length == 0) throw new IllegalArgumentException("no limit: expected one such as 100/minute");
        return new CheckRequest(Map.of("key", key, "limit", limits.length == 1 ? limits[0] : List.of(limits)));
    }

    /** Creates a request for the policies of the default domain. */
    public static CheckRequest forAttributes(Map<String, String> attributes) {
        // Sorted, so that equal requests have equal texts.
        return new CheckRequest(Map.of("attributes", new TreeMap<>(attributes)));
    }

    /** Returns the request for the policies of a domain. */
    public CheckRequest inDomain(String domain) {
        return with("domain", domain);
    }

    /** Returns the request with a cost in units. Default: 1. A cost of 0 charges nothing. */
    public CheckRequest withCost(long cost) {
        if (cost < 0) throw new IllegalArgumentException("invalid cost " + cost + ": expected 0 or more");
        return with("cost", cost);
    }

    /** Returns the request for units that are already spent: they are recorded in full, also beyond the limit. */
    public CheckRequest spent() {
        return with("spent", true);
    }

    /** Returns the request that takes as many units as there are, up to its cost. See {@link Decision#granted}. */
    public CheckRequest upTo() {
        return with("up_to", true);
    }

    /** Returns the request with an id, which counts once if it is repeated. Needs a server with a Redis store. */
    public CheckRequest withId(String id) {
        return with("id", id);
    }

    /** Returns false if the server must see each request: it has an id, or its units are already spent. */
    boolean mayBeCached() {
        return !members.containsKey("id") && !members.containsKey("spent");
    }

    boolean isUpTo() {
        return members.containsKey("up_to");
    }

    Long cost() {
        return members.get("cost") instanceof Long cost ? cost : 1L;
    }

    String toJson() {
        return Json.write(new TreeMap<>(members));
    }

    CheckRequest with(String name, Object value) {
        Map<String, Object> changed = new LinkedHashMap<>(members);
        changed.put(name, Objects.requireNonNull(value, name));
        return new CheckRequest(changed);
    }
}
