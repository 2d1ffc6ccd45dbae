package io.pacegate.client;

import java.io.IOException;
import java.math.BigDecimal;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.LongSupplier;

/** A client of one Pacegate server. It is safe for use by several threads: create one and share it. */
public final class Pacegate {
    /** Sends a body to an endpoint such as {@code check} and returns the answer. */
    interface Transport {
        Answer send(String call, String body) throws Exception;
    }

    record Answer(int status, String body) {}

    private final FailureMode failure;
    private final Consumer<Exception> onUnavailable;
    private final DenyCache denials;
    private final Transport transport;
    private final LongSupplier clock;

    private Pacegate(Builder builder) {
        failure = builder.failure;
        onUnavailable = builder.onUnavailable;
        denials = new DenyCache(builder.maxDenials, builder.maxDenialAge);
        transport = builder.transport != null ? builder.transport : builder.http();
        clock = builder.clock;
    }

    /** Starts a client for this address, for example {@code http://127.0.0.1:8080}, with this failure mode. */
    public static Builder builder(String url, FailureMode failure) {
        return new Builder(url, failure);
    }

    /**
     * Checks and charges a request. A denial is a value. If Pacegate does not answer within the deadline, the failure
     * mode decides.
     *
     * @throws PacegateException if the server rejects the request
     */
    public Decision check(CheckRequest request) {
        String body = request.toJson();
        long sentAt = clock.getAsLong();
        Decision cached = request.mayBeCached() ? denials.get(body, sentAt) : null;
        if (cached != null) return cached;
        Decision decision = decide("check", request);
        if (request.mayBeCached()) denials.add(body, decision, sentAt, clock.getAsLong());
        return decision;
    }

    /**
     * Charges an estimate, the cost of the request. End the reservation of the decision with {@link #settle} or {@link
     * #cancel}. After the {@code ttl} it ends, and the estimate stays charged. Decides and throws like {@link #check}.
     */
    public Decision reserve(CheckRequest request, Duration ttl) {
        return decide("reserve", request.with("ttl", ttl.plusNanos(999_999_999).toSeconds()));
    }

    /**
     * Ends a reservation with the units that were used. Returns false if it was not open, or is null.
     *
     * @throws PacegateUnavailableException if the server does not answer; repeat the call, which counts once
     */
    public boolean settle(String reservation, long used) {
        return reservation != null && end("settle", Map.of("reservation", reservation, "used", used));
    }

    /** Ends a reservation of which nothing was used. Returns and throws like {@link #settle}. */
    public boolean cancel(String reservation) {
        return reservation != null && end("cancel", Map.of("reservation", reservation));
    }

    /**
     * Takes a unit of a concurrency limit. End the permit of the decision with {@link #release}. Decides and throws like
     * {@link #check}.
     */
    public Decision acquire(CheckRequest request) {
        return decide("acquire", request);
    }

    /**
     * Restarts the period of a permit of this request. Returns false if the permit has ended, and true for null, which
     * holds nothing.
     *
     * @throws PacegateUnavailableException if the server does not answer
     */
    public boolean renew(String permit, CheckRequest request) {
        try {
            if (permit != null) post("renew", request.with("permit", permit).toJson());
            return true;
        } catch (PacegateException rejection) {
            if (rejection.status() == 409) return false;
            throw rejection;
        }
    }

    /**
     * Ends a permit of this request; null holds nothing.
     *
     * @throws PacegateUnavailableException if the server does not answer
     */
    public void release(String permit, CheckRequest request) {
        if (permit != null) post("release", request.with("permit", permit).toJson());
    }

    /**
     * Returns the units of a request, and the number of limits. Needs an API key with the scope {@code admin}.
     *
     * @throws PacegateUnavailableException if the server does not answer: the units may have been returned or not
     */
    public long refund(CheckRequest request) {
        return post("refund", request.toJson()).get("limits") instanceof BigDecimal limits ? limits.longValue() : 0;
    }

    private Decision decide(String call, CheckRequest request) {
        try {
            return decode(transport.send(call, request.toJson()));
        } catch (PacegateException rejection) {
            throw rejection;
        } catch (Exception reason) {
            if (reason instanceof InterruptedException) Thread.currentThread().interrupt();
            onUnavailable.accept(reason);
            return Decision.fallback(failure, request);
        }
    }

    private boolean end(String call, Map<String, Object> members) {
        return Boolean.TRUE.equals(post(call, Json.write(members)).get("settled"));
    }

    private Map<?, ?> post(String call, String body) {
        try {
            Answer answer = transport.send(call, body);
            Map<?, ?> members = members(answer.body);
            if (answer.status >= 400 && answer.status < 500) throw rejection(answer.status, members);
            if (answer.status != 200) throw new IOException("status " + answer.status);
            return members;
        } catch (PacegateException rejection) {
            throw rejection;
        } catch (Exception reason) {
            if (reason instanceof InterruptedException) Thread.currentThread().interrupt();
            throw new PacegateUnavailableException(call, reason);
        }
    }

    private static PacegateException rejection(int status, Map<?, ?> members) {
        return new PacegateException(status, text(members, "type"), text(members, "detail"));
    }

    static Decision decode(Answer answer) throws IOException {
        int status = answer.status;
        Map<?, ?> members = members(answer.body);
        if (status >= 400 && status < 500 && status != 429) {
            throw rejection(status, members);
        }
        if ((status != 200 && status != 429) || !(members.get("allowed") instanceof Boolean allowed)) {
            throw new IOException("the server answered " + status + " without a decision");
        }
        BigDecimal remaining = (BigDecimal) members.get("remaining");
        Duration resetAfter = seconds(members.get("reset_after"));
        return new Decision(
                allowed,
                text(members, "policy"),
                text(members, "limit"),
                remaining == null ? null : remaining.longValue(),
                seconds(members.get("retry_after")),
                resetAfter == null ? Duration.ZERO : resetAfter,
                text(members, "source"),
                Boolean.TRUE.equals(members.get("shadow_denied")),
                Boolean.TRUE.equals(members.get("degraded")),
                members.get("revision") instanceof BigDecimal revision ? revision.longValue() : 0,
                members.get("granted") instanceof BigDecimal granted ? granted.longValue() : null,
                text(members, "permit"),
                text(members, "reservation"));
    }

    private static Map<?, ?> members(String body) {
        try {
            return Json.parse(body) instanceof Map<?, ?> members ? members : Map.of();
        } catch (IllegalArgumentException invalid) {
            return Map.of();
        }
    }

    private static String text(Map<?, ?> members, String name) {
        return members.get(name) instanceof String text ? text : null;
    }

    private static Duration seconds(Object value) {
        return value instanceof BigDecimal seconds ? Duration.ofNanos(seconds.movePointRight(9).longValue()) : null;
    }

    /** Options of a client. */
    public static final class Builder {
        private final String url;
        private final FailureMode failure;
        private String apiKey;
        private Duration deadline = Duration.ofMillis(500);
        private int maxDenials = 10_000;
        private Duration maxDenialAge = Duration.ofSeconds(10);
        private Consumer<Exception> onUnavailable = reason -> {};
        private Transport transport;
        private LongSupplier clock = System::nanoTime;

        private Builder(String url, FailureMode failure) {
            this.url = Objects.requireNonNull(url, "url");
            this.failure = Objects.requireNonNull(failure, "failure");
        }

        /** Sets the API key of the server. */
        public Builder apiKey(String apiKey) {
            this.apiKey = apiKey;
            return this;
        }

        /** Sets the deadline of a check. Default: 500 ms. */
        public Builder deadline(Duration deadline) {
            this.deadline = deadline;
            return this;
        }

        /** Sets the maximum number of cached denials. Default: 10,000. */
        public Builder maxDenials(int maxDenials) {
            this.maxDenials = maxDenials;
            return this;
        }

        /** Sets the maximum age of a cached denial. Default: 10 s. Zero turns the cache off. */
        public Builder maxDenialAge(Duration maxDenialAge) {
            this.maxDenialAge = maxDenialAge;
            return this;
        }

        /** Sets a function that is called when the failure mode decides, with the reason. */
        public Builder onUnavailable(Consumer<Exception> onUnavailable) {
            this.onUnavailable = onUnavailable;
            return this;
        }

        Builder transport(Transport transport) {
            this.transport = transport;
            return this;
        }

        Builder clock(LongSupplier nanos) {
            this.clock = nanos;
            return this;
        }

        /** Creates the client. */
        public Pacegate build() {
            return new Pacegate(this);
        }

        private Transport http() {
            HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
            URI endpoints = URI.create(url.replaceAll("/+$", "") + "/v1/");
            HttpRequest.Builder template = HttpRequest.newBuilder(endpoints).header("Content-Type", "application/json");
            if (apiKey != null) template.header("Authorization", "Bearer " + apiKey);
            return (call, body) -> {
                HttpRequest.Builder copy = template.copy().uri(endpoints.resolve(call));
                HttpRequest request = copy.POST(HttpRequest.BodyPublishers.ofString(body)).build();
                CompletableFuture<HttpResponse<String>> answer =
                        client.sendAsync(request, HttpResponse.BodyHandlers.ofString());
                try {
                    HttpResponse<String> response = answer.get(deadline.toNanos(), TimeUnit.NANOSECONDS);
                    return new Answer(response.statusCode(), response.body());
                } catch (TimeoutException | InterruptedException stopped) {
                    answer.cancel(true);
                    throw stopped;
                } catch (ExecutionException failed) {
                    throw failed.getCause() instanceof Exception cause ? cause : failed;
                }
            };
        }
    }
}
