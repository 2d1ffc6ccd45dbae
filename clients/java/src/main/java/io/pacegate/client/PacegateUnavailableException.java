package io.pacegate.client;

/**
 * The server did not answer {@code settle}, {@code cancel}, {@code renew}, {@code release} or {@code refund} within the
 * deadline.
 */
public final class PacegateUnavailableException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    PacegateUnavailableException(String call, Exception reason) {
        super("no answer to " + call + ": " + reason.getMessage(), reason);
    }
}
