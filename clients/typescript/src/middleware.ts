import type { CheckRequest, Decision, Pacegate } from "./client.js";

/** Longest path that the server accepts as an attribute, in bytes. */
const MAX_PATH_BYTES = 1024;

/** The part of a request that the middleware reads. Requests of Express, Connect and `node:http` have it. */
export interface HttpRequest {
  method?: string;
  url?: string;
  /** The full path, if a router has shortened `url`. */
  originalUrl?: string;
  /** The address of the client, by Express's setting `trust proxy`. */
  ip?: string | undefined;
  socket: { remoteAddress?: string | undefined };
}

/** The part of a response that the middleware writes. */
export interface HttpResponse {
  statusCode: number;
  setHeader(name: string, value: string): unknown;
  end(body: string): unknown;
}

export interface RateLimitOptions<R> {
  /** Domain of the policies. Default: the default domain. */
  domain?: string;
  /**
   * Returns the request to check, or `null` to skip the check. Default: the attributes `ip`, `method` and `path`.
   */
  request?: (request: R) => CheckRequest | null | Promise<CheckRequest | null>;
}

/**
 * Creates middleware for Express, Connect or `node:http`. A denied request is answered with 429, `Retry-After` and
 * `RateLimit`. A request that the server rejects is passed to `next` as an error, also with the failure mode `open`.
 */
export function rateLimit<R extends HttpRequest>(client: Pacegate, options: RateLimitOptions<R> = {}) {
  const describe = options.request ?? ((request: R) => attributes(request, options.domain));
  return async (request: R, response: HttpResponse, next: (error?: unknown) => void): Promise<void> => {
    try {
      if (Buffer.byteLength(path(request)) > MAX_PATH_BYTES) return answer(response, 414, "path is too long");
      const check = await describe(request);
      if (check !== null) {
        const decision = await client.check(check);
        for (const [name, value] of Object.entries(rateLimitHeaders(decision))) response.setHeader(name, value);
        if (!decision.allowed) return answer(response, 429, "too many requests");
      }
    } catch (error) {
      return next(error);
    }
    next();
  };
}

/** Returns the response headers for a decision: `RateLimit`, and `Retry-After` if the request may be retried. */
export function rateLimitHeaders(decision: Decision): Record<string, string> {
  const headers: Record<string, string> = {};
  const seconds = decision.allowed ? decision.resetAfter : decision.retryAfter;
  const whole = seconds === null ? null : Math.max(1, Math.ceil(seconds));
  if (decision.policy !== null && decision.remaining !== null) {
    headers["RateLimit"] = `"${decision.policy}";r=${decision.remaining}${whole === null ? "" : `;t=${whole}`}`;
  }
  if (!decision.allowed && whole !== null) headers["Retry-After"] = String(whole);
  return headers;
}

/**
 * Returns the address to count a client by: IPv4 addresses, also those written as IPv6, stay whole. Of an IPv6 address
 * only the first 64 bits count, because one client usually has the whole network.
 */
export function clientNetwork(address: string): string {
  const bare = address.split("%")[0] ?? "";
  if (!bare.includes(":") || !URL.canParse(`http://[${bare}]`)) return address;
  // The URL parser writes all groups in hexadecimal.
  const [head = "", tail] = new URL(`http://[${bare}]`).hostname.slice(1, -1).split("::");
  const groups = (part: string | undefined) => (part ? part.split(":").map((group) => parseInt(group, 16)) : []);
  const [first, last] = [groups(head), groups(tail)];
  const all = [...first, ...new Array<number>(8 - first.length - last.length).fill(0), ...last];
  const prefix = all.slice(0, 6).join();
  if (prefix === "0,0,0,0,0,65535" || prefix === `100,${0xff9b},0,0,0,0`) {
    return all.slice(6).flatMap((group) => [group >> 8, group & 255]).join(".");
  }
  const network = all.slice(0, 4);
  while (network.at(-1) === 0) network.pop();
  return `${network.map((group) => group.toString(16)).join(":")}::`;
}

/** Returns the path without the query. A client may send a whole URL, which routers accept too. */
function path(request: HttpRequest): string {
  const target = (request.originalUrl ?? request.url ?? "/").replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, "");
  return target.split(/[?#]/)[0] || "/";
}

function attributes(request: HttpRequest, domain: string | undefined): CheckRequest {
  const ip = clientNetwork(request.ip ?? request.socket.remoteAddress ?? "");
  const check = { attributes: { ip, method: request.method ?? "GET", path: path(request) } };
  return domain === undefined ? check : { domain, ...check };
}

function answer(response: HttpResponse, status: number, error: string): void {
  response.statusCode = status;
  response.setHeader("Content-Type", "application/json");
  response.end(JSON.stringify({ error }));
}
