import type { Decision } from "./client.js";

interface Entry {
  decision: Decision;
  receivedAt: number;
  /** The denial surely holds until here. */
  validUntil: number;
}

/**
 * Denials that still hold. The server decided after the request was sent and before its answer arrived. So a denial
 * holds at least until the time of sending plus `retryAfter`, and the request is admitted at the latest at the time
 * of arrival plus `retryAfter`.
 */
export class DenyCache {
  /** In the order of insertion. */
  readonly #entries = new Map<string, Entry>();

  constructor(
    readonly maxEntries: number,
    readonly maxAgeMs: number,
  ) {}

  get(request: string, now: number): Decision | undefined {
    const entry = this.#entries.get(request);
    if (entry === undefined) return undefined;
    if (now >= entry.validUntil) {
      this.#entries.delete(request);
      return undefined;
    }
    const passed = (now - entry.receivedAt) / 1000;
    const { retryAfter, resetAfter } = entry.decision;
    return {
      ...entry.decision,
      retryAfter: retryAfter === null ? null : retryAfter - passed,
      resetAfter: Math.max(0, resetAfter - passed),
      source: "deny-cache",
    };
  }

  /** Adds a denial, unless a released permit or a recovered store may end it early. */
  add(request: string, decision: Decision, sentAt: number, receivedAt: number): void {
    if (decision.allowed || decision.degraded || decision.limit?.endsWith("concurrency")) return;
    const holds = Math.min(this.maxAgeMs, (decision.retryAfter ?? Infinity) * 1000);
    if (sentAt + holds <= receivedAt || this.maxEntries < 1) return;
    this.#entries.delete(request);
    if (this.#entries.size >= this.maxEntries) {
      for (const oldest of this.#entries.keys()) {
        this.#entries.delete(oldest);
        break;
      }
    }
    this.#entries.set(request, { decision, receivedAt, validUntil: sentAt + holds });
  }
}
