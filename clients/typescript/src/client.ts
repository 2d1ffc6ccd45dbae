import { DenyCache } from "./deny-cache.js";

/** The decision when Pacegate does not answer: `open` allows the request, `closed` denies it. */
export type FailureMode = "open" | "closed";

/** A key with its own limit, or attributes for the policies of the server, and a cost. */
export type LimitRequest = {
  /** Units to charge. Default: 1. A cost of 0 charges nothing. */
  cost?: number;
} & (
  | { key: string; limit: string | string[]; domain?: never; attributes?: never }
  | { domain?: string; attributes: Record<string, string>; key?: never; limit?: never }
);

/** A request to check. */
export type CheckRequest = LimitRequest & {
  /** The units are already spent: records them in full, also beyond the limit. */
  spent?: boolean;
  /** Takes as many units as there are, up to `cost`. The decision has their number in `granted`. */
  upTo?: boolean;
  /** Counts a repeated request with the same id once. Needs a server with a Redis store. */
  id?: string;
};

/** A request whose real cost is known only afterwards; `cost` is the estimate. */
export type ReserveRequest = LimitRequest & {
  /** Seconds until the reservation ends, and its estimate stays charged. Default: 300. */
  ttl?: number;
};

/** The answer to a check, `reserve` or `acquire`. Times are in seconds. */
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
  /** Units that a check with `upTo` has taken. */
  granted?: number;
  /** The permit of `acquire`. Missing if no units are held. */
  permit?: string;
  /** The reservation of `reserve`. Missing if the request was denied, or the failure mode decided. */
  reservation?: string;
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

/** The server did not answer `settle`, `cancel`, `renew`, `release` or `refund` within the deadline. */
export class PacegateUnavailable extends Error {
  override readonly name = "PacegateUnavailable";
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
    this.#url = `${options.url.replace(/\/+$/, "")}/v1`;
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
    // Units that are already spent must be recorded.
    const mayBeCached = request.id === undefined && request.spent !== true;
    const sentAt = this.#now();
    const cached = mayBeCached ? this.#denials.get(body, sentAt) : undefined;
    if (cached !== undefined) return cached;
    const decision = await this.#decide("check", body, request);
    if (mayBeCached) this.#denials.add(body, decision, sentAt, this.#now());
    return decision;
  }

  /**
   * Charges an estimate. End the `reservation` of the decision with `settle` or `cancel`. Decides and throws like
   * `check`, but denials are not cached, because a settlement may end them early.
   */
  reserve(request: ReserveRequest): Promise<Decision> {
    return this.#decide("reserve", encode(request), request);
  }

  /**
   * Ends a reservation with the units that were used. Returns false if it was not open, or is `undefined`. Throws
   * `PacegateUnavailable` if the server does not answer; repeat the call, which counts once.
   */
  settle(reservation: string | undefined, used: number): Promise<boolean> {
    return this.#end("settle", { reservation, used });
  }

  /** Ends a reservation of which nothing was used. Returns and throws like `settle`. */
  cancel(reservation: string | undefined): Promise<boolean> {
    return this.#end("cancel", { reservation });
  }

  /** Takes a unit of a concurrency limit. End the `permit` of the decision with `release`. */
  acquire(request: LimitRequest): Promise<Decision> {
    return this.#decide("acquire", encode(request), request);
  }

  /**
   * Restarts the period of a permit of this request. Returns false if the permit has ended, and true for `undefined`,
   * which holds nothing. Throws `PacegateUnavailable` if the server does not answer.
   */
  async renew(permit: string | undefined, request: LimitRequest): Promise<boolean> {
    if (permit === undefined) return true;
    try {
      await this.#post("renew", encode({ ...request, permit }));
    } catch (error) {
      if (error instanceof PacegateError && error.status === 409) return false;
      throw error;
    }
    return true;
  }

  /** Ends a permit of this request; `undefined` holds nothing. Throws `PacegateUnavailable` without an answer. */
  async release(permit: string | undefined, request: LimitRequest): Promise<void> {
    if (permit !== undefined) await this.#post("release", encode({ ...request, permit }));
  }

  /**
   * Returns `cost` units of a request, and resolves to the number of limits. Needs an API key with the scope `admin`.
   * Throws `PacegateUnavailable` if the server does not answer: then the units may have been returned or not.
   */
  async refund(request: LimitRequest): Promise<number> {
    return Number((await this.#post("refund", encode(request)))["limits"]);
  }

  async #decide(call: string, body: string, request: CheckRequest): Promise<Decision> {
    try {
      const { status, text } = await this.#send(call, body);
      if (status >= 400 && status < 500 && status !== 429) throw rejection(status, text);
      const decision = status === 200 || status === 429 ? decode(text) : undefined;
      if (decision === undefined) throw new Error(`${this.#url}/${call} answered ${status} without a decision`);
      return decision;
    } catch (error) {
      if (error instanceof PacegateError) throw error;
      this.#options.onUnavailable?.(error);
      return fallback(this.#options.failure, request);
    }
  }

  async #end(call: string, members: { reservation: string | undefined; used?: number }): Promise<boolean> {
    if (members.reservation === undefined) return false;
    return (await this.#post(call, JSON.stringify(members)))["settled"] === true;
  }

  async #post(call: string, body: string): Promise<Record<string, unknown>> {
    let answer;
    try {
      answer = await this.#send(call, body);
    } catch (cause) {
      throw new PacegateUnavailable(`no answer from ${this.#url}/${call}`, { cause });
    }
    const { status, text } = answer;
    if (status === 200) return parse(text) ?? {};
    if (status >= 400 && status < 500) throw rejection(status, text);
    throw new PacegateUnavailable(`${this.#url}/${call} answered ${status}`);
  }

  async #send(call: string, body: string): Promise<{ status: number; text: string }> {
    const response = await (this.#options.fetch ?? fetch)(`${this.#url}/${call}`, {
      method: "POST",
      headers: this.#headers,
      body,
      redirect: "manual",
      signal: AbortSignal.timeout(this.#options.deadlineMs ?? 500),
    });
    return { status: response.status, text: await response.text() };
  }
}

/** Encodes a request. Equal requests have equal texts, because attributes are sorted. */
function encode(request: CheckRequest & { ttl?: number; permit?: string }): string {
  const { attributes } = request;
  const sorted = attributes && Object.fromEntries(Object.entries(attributes).sort(([a], [b]) => (a < b ? -1 : 1)));
  const { domain, key, limit, cost, spent, upTo, id, ttl, permit } = request;
  return JSON.stringify({ domain, attributes: sorted, key, limit, cost, spent, up_to: upTo, id, ttl, permit });
}

function decode(text: string): Decision | undefined {
  const answer = parse(text);
  if (typeof answer?.["allowed"] !== "boolean") return undefined;
  const decision: Decision = {
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
  const { granted, permit, reservation } = answer;
  if (typeof granted === "number") decision.granted = granted;
  if (typeof permit === "string") decision.permit = permit;
  if (typeof reservation === "string") decision.reservation = reservation;
  return decision;
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

function fallback(failure: FailureMode, request: CheckRequest): Decision {
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
    ...(request.upTo && { granted: allowed ? (request.cost ?? 1) : 0 }),
  };
}
