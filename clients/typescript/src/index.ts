/** A client for the Pacegate rate limiter: `Pacegate` for calls, `rateLimit` for Express. */

export { Pacegate, PacegateError, PacegateUnavailable } from "./client.js";
export type { CheckRequest, Decision, FailureMode, LimitRequest, PacegateOptions, ReserveRequest } from "./client.js";
export { clientNetwork, rateLimit, rateLimitHeaders } from "./middleware.js";
export type { HttpRequest, HttpResponse, RateLimitOptions } from "./middleware.js";
