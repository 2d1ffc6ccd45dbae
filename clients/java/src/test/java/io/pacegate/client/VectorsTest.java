package io.pacegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

class VectorsTest {
    private static final Map<String, Object> VECTORS = read();

    @SuppressWarnings("unchecked")
    private static Map<String, Object> read() {
        String file = System.getenv().getOrDefault("PACEGATE_VECTORS", "../vectors.json");
        try {
            return (Map<String, Object>) Json.parse(Files.readString(Path.of(file)));
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    @SuppressWarnings("unchecked")
    private static List<Map<String, Object>> list(Object value) {
        return (List<Map<String, Object>>) value;
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> map(Object value) {
        return (Map<String, Object>) value;
    }

    private static long millis(Object value) {
        return ((BigDecimal) value).longValue();
    }

    private static CheckRequest request(Map<String, Object> members) {
        CheckRequest request;
        if (members.get("limit") instanceof String limit) {
            request = CheckRequest.forKey((String) members.get("key"), limit);
        } else if (members.get("limit") instanceof List<?> limits) {
            request = CheckRequest.forKey((String) members.get("key"), limits.toArray(String[]::new));
        } else if (members.get("attributes") == null) {
            return null;
        } else {
            Map<String, String> attributes = new java.util.HashMap<>();
            map(members.get("attributes")).forEach((name, value) -> attributes.put(name, (String) value));
            request = CheckRequest.forAttributes(attributes);
        }
        if (members.get("domain") instanceof String domain) request = request.inDomain(domain);
        if (members.get("cost") instanceof BigDecimal cost) request = request.withCost(cost.longValue());
        if (members.containsKey("spent")) request = request.spent();
        if (members.containsKey("up_to")) request = request.upTo();
        if (members.get("id") instanceof String id) request = request.withId(id);
        return request;
    }

    private static Decision decision(Object members) throws Exception {
        return Pacegate.decode(new Pacegate.Answer(200, Json.write(members)));
    }

    /** The clock and the server of a case. */
    private static final class Script implements Pacegate.Transport {
        private long now;
        private Map<String, Object> server;
        private final List<Object> sent = new ArrayList<>();

        @Override
        public Pacegate.Answer send(String call, String body) throws Exception {
            sent.add(List.of(call, Json.parse(body)));
            if (server == null || server.containsKey("fails")) throw new java.net.ConnectException("refused");
            now += millis(server.get("took_ms")) * 1_000_000;
            String text = server.get("text") instanceof String plain ? plain : Json.write(server.get("body"));
            return new Pacegate.Answer((int) millis(server.get("status")), text);
        }
    }

    @TestFactory
    Stream<DynamicTest> checks() {
        return list(VECTORS.get("checks")).stream()
                .map(vector -> DynamicTest.dynamicTest((String) vector.get("name"), () -> run(vector)));
    }

    private static void run(Map<String, Object> vector) throws Exception {
        Map<String, Object> options = map(vector.get("options"));
        Script script = new Script();
        FailureMode failure = FailureMode.valueOf(((String) options.get("failure")).toUpperCase());
        Pacegate.Builder builder = Pacegate.builder("http://pacegate.test", failure).transport(script).clock(() -> script.now);
        if (options.containsKey("max_denials")) builder.maxDenials((int) millis(options.get("max_denials")));
        if (options.containsKey("max_denial_age_ms")) {
            builder.maxDenialAge(Duration.ofMillis(millis(options.get("max_denial_age_ms"))));
        }
        Pacegate client = builder.build();
        for (Map<String, Object> step : list(vector.get("steps"))) {
            script.now = millis(step.get("at_ms")) * 1_000_000;
            script.server = map(step.get("server"));
            script.sent.clear();
            String call = step.get("call") instanceof String name ? name : "check";
            String at = "at " + step.get("at_ms") + " ms";
            if (step.get("error") != null) {
                Map<String, Object> expected = map(step.get("error"));
                PacegateException error =
                        assertThrows(PacegateException.class, () -> call(client, call, map(step.get("request"))), at);
                assertEquals(millis(expected.get("status")), error.status(), at);
                assertEquals(expected.get("type"), error.type(), at);
                assertEquals(expected.get("detail"), error.detail(), at);
            } else if (step.get("unavailable") != null) {
                assertThrows(
                        PacegateUnavailableException.class, () -> call(client, call, map(step.get("request"))), at);
            } else {
                Object expected = step.containsKey("decision") ? decision(step.get("decision")) : step.get("result");
                assertEquals(expected, call(client, call, map(step.get("request"))), at);
            }
            Object sent = step.get("sent");
            assertEquals(sent == null ? List.of() : List.of(List.of(call, sent)), script.sent, at);
        }
    }

    /** Calls a method. The result of a method that returns nothing is null. */
    private static Object call(Pacegate client, String call, Map<String, Object> members) {
        CheckRequest request = request(members);
        String permit = (String) members.get("permit");
        String reservation = (String) members.get("reservation");
        switch (call) {
            case "reserve":
                return client.reserve(request, Duration.ofSeconds(millis(members.get("ttl"))));
            case "settle":
                return client.settle(reservation, millis(members.get("used")));
            case "cancel":
                return client.cancel(reservation);
            case "acquire":
                return client.acquire(request);
            case "renew":
                return client.renew(permit, request);
            case "release":
                client.release(permit, request);
                return null;
            case "refund":
                return BigDecimal.valueOf(client.refund(request));
            default:
                return client.check(request);
        }
    }

    @Test
    void headers() throws Exception {
        for (Map<String, Object> row : list(VECTORS.get("headers"))) {
            assertEquals(row.get("headers"), HttpRules.headers(decision(row.get("decision"))));
        }
    }

    @Test
    void addresses() {
        for (Object row : (List<?>) VECTORS.get("addresses")) {
            List<?> pair = (List<?>) row;
            assertEquals(pair.get(1), HttpRules.clientNetwork((String) pair.get(0)));
        }
    }

    @Test
    void invalidJsonIsRejected() {
        List<String> texts = Arrays.asList("", "{", "[1", "{\"a\"}", "{\"a\":1,}", "tru", "1 2", "\"", "\"\\u12", "-", "[".repeat(100));
        for (String text : texts) {
            assertThrows(IllegalArgumentException.class, () -> Json.parse(text), text);
        }
    }
}
