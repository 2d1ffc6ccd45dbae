package io.pacegate.client;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/** Rules for web servers: response headers, and the address that a client is counted by. */
public final class HttpRules {
    private static final byte[] MAPPED = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, -1};
    private static final byte[] NAT64 = {0, 0x64, -1, (byte) 0x9b, 0, 0, 0, 0, 0, 0, 0, 0};

    private HttpRules() {}

    /** Returns the response headers for a decision: RateLimit, and Retry-After if the request may be retried. */
    public static Map<String, String> headers(Decision decision) {
        Map<String, String> headers = new LinkedHashMap<>();
        Duration after = decision.allowed() ? decision.resetAfter() : decision.retryAfter();
        Long whole = after == null ? null : Math.max(1, after.plusNanos(999_999_999).toSeconds());
        if (decision.policy() != null && decision.remaining() != null) {
            String time = whole == null ? "" : ";t=" + whole;
            headers.put("RateLimit", "\"" + decision.policy() + "\";r=" + decision.remaining() + time);
        }
        if (!decision.allowed() && whole != null) headers.put("Retry-After", whole.toString());
        return headers;
    }

    /**
     * Returns the address to count a client by. IPv4 addresses, also those written as IPv6, stay whole. Of an IPv6
     * address only the first 64 bits count, because one client usually has the whole network.
     */
    public static String clientNetwork(String address) {
        String bare = address.split("%", 2)[0];
        // Only literals with a colon, so that no name is resolved.
        if (!bare.matches("[0-9a-fA-F.]*:[0-9a-fA-F:.]*")) return address;
        byte[] bytes;
        try {
            bytes = InetAddress.getByName(bare).getAddress();
        } catch (UnknownHostException invalid) {
            return address;
        }
        byte[] prefix = Arrays.copyOf(bytes, 12);
        if (bytes.length == 4) return dotted(bytes, 0);
        if (Arrays.equals(prefix, MAPPED) || Arrays.equals(prefix, NAT64)) return dotted(bytes, 12);
        StringBuilder network = new StringBuilder();
        int groups = 4;
        while (groups > 0 && group(bytes, groups - 1) == 0) groups--;
        for (int index = 0; index < groups; index++) {
            network.append(index == 0 ? "" : ":").append(Integer.toHexString(group(bytes, index)));
        }
        return network.append("::").toString();
    }

    private static int group(byte[] bytes, int index) {
        return (bytes[2 * index] & 255) << 8 | bytes[2 * index + 1] & 255;
    }

    private static String dotted(byte[] bytes, int start) {
        return (bytes[start] & 255) + "." + (bytes[start + 1] & 255) + "." + (bytes[start + 2] & 255) + "."
                + (bytes[start + 3] & 255);
    }
}
