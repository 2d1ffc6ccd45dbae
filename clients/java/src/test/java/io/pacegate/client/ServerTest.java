package io.pacegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Test;
import org.springframework.mock.web.MockHttpServletResponse;
import org.springframework.test.web.servlet.MockMvc;
import org.springframework.test.web.servlet.request.MockMvcRequestBuilders;
import org.springframework.test.web.servlet.setup.MockMvcBuilders;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;

class ServerTest {
    private static final String UNIQUE = "java-" + ProcessHandle.current().pid() + "-" + System.nanoTime();

    private static String url() {
        String url = System.getenv("PACEGATE_URL");
        assumeTrue(url != null, "PACEGATE_URL is not set");
        return url;
    }

    private static Pacegate patient() {
        return Pacegate.builder(url(), FailureMode.OPEN).deadline(Duration.ofSeconds(20)).build();
    }

    private static long requests() throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url() + "/v1/stats")).build();
        String body = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
        Map<?, ?> stats = (Map<?, ?>) Json.parse(body);
        Map<?, ?> http = (Map<?, ?>) ((List<?>) stats.get("listeners")).get(0);
        return ((Number) http.get("requests")).longValue();
    }

    @Test
    void aDeniedFloodStaysInTheProcess() throws Exception {
        Pacegate client = patient();
        long before = requests();
        ExecutorService threads = Executors.newFixedThreadPool(20);
        List<Future<Integer>> workers = new ArrayList<>();
        for (int worker = 0; worker < 20; worker++) {
            workers.add(threads.submit(() -> {
                int allowed = 0;
                for (int call = 0; call < 5000; call++) {
                    Decision decision = client.check(CheckRequest.forKey(UNIQUE, "5/day"));
                    assertFalse(decision.degraded());
                    if (decision.allowed()) allowed++;
                }
                return allowed;
            }));
        }
        int allowed = 0;
        for (Future<Integer> worker : workers) allowed += worker.get();
        threads.shutdown();
        long sent = requests() - before;
        System.out.printf("100,000 calls, %d allowed, %d requests to the server%n", allowed, sent);
        // A day may end during the test.
        assertTrue(allowed == 5 || allowed == 10, allowed + " allowed");
        assertTrue(sent < 1000, sent + " requests");
    }

    @RestController
    static class Hello {
        @GetMapping("/")
        String hello() {
            return "hello";
        }
    }

    @Test
    void springAnswers429WithTheHeadersOfTheDecision() throws Exception {
        CheckRequest check = CheckRequest.forKey(UNIQUE + "-spring", "2/day");
        MockMvc spring = MockMvcBuilders.standaloneSetup(new Hello())
                .addFilters(new RateLimitFilter(patient(), request -> Optional.of(check)))
                .build();
        List<MockHttpServletResponse> answers = new ArrayList<>();
        for (int call = 0; call < 3; call++) {
            answers.add(spring.perform(MockMvcRequestBuilders.get("/")).andReturn().getResponse());
        }
        assertEquals(List.of(200, 200, 429), answers.stream().map(MockHttpServletResponse::getStatus).toList());
        assertTrue(answers.get(0).getHeader("RateLimit").matches("\"inline\";r=1;t=\\d+"));
        assertTrue(answers.get(2).getHeader("Retry-After").matches("\\d+"));
        assertEquals("{\"error\":\"too many requests\"}", answers.get(2).getContentAsString());
        String longPath = "/" + "x".repeat(1024);
        assertEquals(414, spring.perform(MockMvcRequestBuilders.get(longPath)).andReturn().getResponse().getStatus());
    }

    @Test
    void aSilentServerIsBoundedByTheDeadline() throws Exception {
        try (ServerSocket silent = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            for (FailureMode failure : FailureMode.values()) {
                List<Exception> reasons = new ArrayList<>();
                Pacegate client = Pacegate.builder("http://127.0.0.1:" + silent.getLocalPort(), failure)
                        .deadline(Duration.ofMillis(50))
                        .onUnavailable(reasons::add)
                        .build();
                Decision decision = client.check(CheckRequest.forAttributes(Map.of("user", "alice")));
                assertEquals(failure == FailureMode.OPEN, decision.allowed());
                assertTrue(decision.degraded());
                assertInstanceOf(TimeoutException.class, reasons.get(0));
            }
        }
    }
}
