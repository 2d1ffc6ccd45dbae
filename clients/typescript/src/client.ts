import { DenyCache } from "./deny-cache.js";

/** The decision when Pacegate does not answer: `open` allows the request, `closed` denies it. */
export type FailureMode = "open" | "closed";

/** A request to check: a key with its own limit, or attributes for the policies of the server. */
export type CheckRequest = {
  /** Units to charge. Default: 1. A cost of 0 charges nothing. */
  cost?: number;
  /** Counts a repeated request with the same id once. Needs a server with a Redis store. */
  id?: string;
} & (
  | { key: string; limit: string | string[]; domain?: never; attributes?: never }
  | { domain?: string; attributes: Record<string, string>; key?: never; limit?: never }
);

/** The answer to a check. Times are in seconds. */
export interface Decision {
  allowed: boolean;
  /** The policy that decided; `null` if no policy matches the request. */
  policy: string | null;
  /** The limit that decided; the tightest if several apply. */
  limit: string | null;
  /** Units that would be admitted now. */
  remaining: number | null;
  /** Time until the same request would be allowed. `null` if it is allowed, or never will be. */
  retryAfter: number | null;
  /** Time until the usage is back to zero. */
  resetAfter: number;
  /** `store`, `deny-cache`, `fallback`, `blocked`, `unlimited`, `lease` or `overflow`. */
  source: string;
  /** True if a policy in shadow mode would have denied the request. */
  shadowDenied: boolean;
  /** True if a failure mode decided, on the server or in this client. */
  degraded: boolean;
  /** Number of the server's configuration; 0 if this client decided. */
  revision: number;
}

export interface PacegateOptions {
  /** Address of the server, for example `http://127.0.0.1:8080`. */
  url: string;
  /** The decision when Pacegate does not answer. */
  failure: FailureMode;
  /** API key of the server. */
  apiKey?: string;
  /** Deadline of a check in milliseconds. Default: 500. */
  deadlineMs?: number;
  /** Maximum number of cached denials. Default: 10,000. */
  maxDenials?: number;
  /** Maximum age of a cached denial in milliseconds. Default: 10,000. 0 turns the cache off. */
  maxDenialAgeMs?: number;
  /** Called when the failure mode decides, with the reason. */
  onUnavailable?: (error: unknown) => void;
  /** Replaces `fetch`. */
  fetch?: typeof fetch;
  /** Replaces the monotonic clock, in milliseconds. */
  now?: () => number;
}

/** The server rejected the request, for example because of an invalid limit or API key. */
export class PacegateError extends Error {
  constructor(
    /** HTTP status of the answer. */
    readonly status: number,
    /** Problem type, for example `urn:pacegate:problem:limit`. */
    readonly type: string | null,
    /** The server's explanation. */
    readonly detail: string | null,
  ) {
    super(`pacegate rejected the request with status ${status}: ${detail ?? "no details"}`);
    this.name = "PacegateError";
  }
}

/** A client of one Pacegate server. Create one and share it. */
export class Pacegate {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #options: PacegateOptions;
  readonly #denials: DenyCache;
  readonly #now: () => number;

  constructor(options: PacegateOptions) {
    if (options.failure !== "open" && options.failure !== "closed") {
      throw new TypeError(`invalid failure mode \`${options.failure}\`: expected open or closed`);
    }
    this.#url = `${options.url.replace(/\/+$/, "")}/v1/check`;
    this.#headers = { "Content-Type": "application/json" };
    if (options.apiKey !== undefined) this.#headers["Authorization"] = `Bearer ${options.apiKey}`;
    this.#options = options;
    this.#denials = new DenyCache(options.maxDenials ?? 10_000, options.maxDenialAgeMs ?? 10_000);
    this.#now = options.now ?? (() => performance.now());
  }

  /**
   * Checks and charges a request. A denial is a value. If Pacegate does not answer within the deadline, the failure
   * mode decides. Throws `PacegateError` if the server rejects the request.
   */
  async check(request: CheckRequest): Promise<Decision> {
    const body = encode(request);
    const mayBeCached = request.id === undefined;
    const sentAt = this.#now();
    const cached = mayBeCached ? this.#denials.get(body, sentAt) : undefined;
    if (cached !== undefined) return cached;
    let decision: Decision;
    try {
      decision = await this.#send(body);
    } catch (error) {
      if (error instanceof PacegateError) throw error;
      this.#options.onUnavailable?.(error);
      return fallback(this.#options.failure);
    }
    if (mayBeCached) this.#denials.add(body, decision, sentAt, this.#now());
    return decision;
  }

  async #send(body: string): Promise<Decision> {
    const response = await (this.#options.fetch ?? fetch)(this.#url, {
      method: "POST",
      headers: this.#headers,
      body,
      redirect: "manual",
      signal: AbortSignal.timeout(this.#options.deadlineMs ?? 500),
    });
    const text = await response.text();
    const { status } = response;
    if (status >= 400 && status < 500 && status !== 429) throw rejection(status, text);
    const decision = status === 200 || status === 429 ? decode(text) : undefined;
    if (decision === undefined) throw new Error(`${this.#url} answered ${status} without a decision`);
    return decision;
  }
}

/** Encodes a request. Equal requests have equal texts, because attributes are sorted. */
function encode(request: CheckRequest): string {
  const { attributes } = request;
  const sorted = attributes && Object.fromEntries(Object.entries(attributes).sort(([a], [b]) => (a < b ? -1 : 1)));
  const { domain, key, limit, cost, id } = request;
  return JSON.stringify({ domain, attributes: sorted, key, limit, cost, id });
}

function decode(text: string): Decision | undefined {
  const answer = parse(text);
  if (typeof answer?.["allowed"] !== "boolean") return undefined;
  return {
    allowed: answer["allowed"],
    policy: (answer["policy"] as string | null) ?? null,
    limit: (answer["limit"] as string | null) ?? null,
    remaining: (answer["remaining"] as number | null) ?? null,
    retryAfter: (answer["retry_after"] as number | null) ?? null,
    resetAfter: (answer["reset_after"] as number | null) ?? 0,
    source: String(answer["source"]),
    shadowDenied: answer["shadow_denied"] === true,
    degraded: answer["degraded"] === true,
    revision: Number(answer["revision"]),
  };
}

function rejection(status: number, text: string): PacegateError {
  const problem = parse(text);
  const member = (name: string) => (typeof problem?.[name] === "string" ? (problem[name] as string) : null);
  return new PacegateError(status, member("type"), member("detail"));
}

function parse(text: string): Record<string, unknown> | undefined {
  try {
    return JSON.parse(text) ?? undefined;
  } catch {
    return undefined;
  }
}

function fallback(failure: FailureMode): Decision {
  const allowed = failure === "open";
  return {
    allowed,
    policy: null,
    limit: null,
    remaining: null,
    retryAfter: allowed ? null : 1,
    resetAfter: 0,
    source: "fallback",
    shadowDenied: false,
    degraded: true,
    revision: 0,
  };
}
