/** A client for the Pacegate rate limiter: `Pacegate` for checks, `rateLimit` for Express. */

export { Pacegate, PacegateError } from "./client.js";
export type { CheckRequest, Decision, FailureMode, PacegateOptions } from "./client.js";
export { clientNetwork, rateLimit, rateLimitHeaders } from "./middleware.js";
export type { HttpRequest, HttpResponse, RateLimitOptions } from "./middleware.js";
