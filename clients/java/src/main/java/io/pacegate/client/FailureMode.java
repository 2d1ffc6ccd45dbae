package io.pacegate.client;

/** The decision when Pacegate does not answer. */
public enum FailureMode {
    /** Allows the request. */
    OPEN,
    /** Denies the request for a second. */
    CLOSED
}
