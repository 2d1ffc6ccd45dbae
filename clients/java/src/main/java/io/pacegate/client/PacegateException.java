package io.pacegate.client;

/** The server rejected the request, for example because of an invalid limit or API key. */
public final class PacegateException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private final int status;
    private final String type;
    private final String detail;

    PacegateException(int status, String type, String detail) {
        super("pacegate rejected the request with status " + status + ": " + (detail == null ? "no details" : detail));
        this.status = status;
        this.type = type;
        this.detail = detail;
    }

    /** Returns the HTTP status of the answer. */
    public int status() {
        return status;
    }

    /** Returns the problem type, for example {@code urn:pacegate:problem:limit}, or null. */
    public String type() {
        return type;
    }

    /** Returns the server's explanation, or null. */
    public String detail() {
        return detail;
    }
}
