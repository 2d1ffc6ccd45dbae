import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { type Decision, clientNetwork, Pacegate, PacegateError, PacegateUnavailable, rateLimitHeaders } from "@pacegate/client";

type Json = Record<string, any>;

const file = process.env["PACEGATE_VECTORS"] ?? "../vectors.json";
const vectors = JSON.parse(readFileSync(file, "utf8")) as Json;

function decision(json: Json): Decision {
  return {
    allowed: json["allowed"],
    policy: json["policy"],
    limit: json["limit"],
    remaining: json["remaining"],
    retryAfter: json["retry_after"],
    resetAfter: json["reset_after"],
    source: json["source"],
    shadowDenied: json["shadow_denied"],
    degraded: json["degraded"],
    revision: json["revision"],
    ...("granted" in json && { granted: json["granted"] }),
    ...("permit" in json && { permit: json["permit"] }),
    ...("reservation" in json && { reservation: json["reservation"] }),
  };
}

/** Calls the method of a step. */
function call(client: Pacegate, step: Json): Promise<unknown> {
  const { reservation, used, permit, up_to: upTo, ...request } = step["request"];
  const requested = { ...request, ...(upTo !== undefined && { upTo }) };
  switch (step["call"]) {
    case "reserve": return client.reserve(requested);
    case "settle": return client.settle(reservation ?? undefined, used);
    case "cancel": return client.cancel(reservation ?? undefined);
    case "acquire": return client.acquire(requested);
    case "renew": return client.renew(permit ?? undefined, requested);
    case "release": return client.release(permit ?? undefined, requested).then(() => null);
    case "refund": return client.refund(requested);
    default: return client.check(requested);
  }
}

/** Rounds times to microseconds. */
function rounded(value: Decision): Decision {
  const round = (seconds: number) => Math.round(seconds * 1e6) / 1e6;
  const retryAfter = value.retryAfter === null ? null : round(value.retryAfter);
  return { ...value, retryAfter, resetAfter: round(value.resetAfter) };
}

for (const { name, options, steps } of vectors["checks"] as Json[]) {
  test(name, async () => {
    let now = 0;
    let server: Json | null = null;
    const sent: unknown[] = [];
    const client = new Pacegate({
      url: "http://pacegate.test/",
      failure: options.failure,
      ...(options.max_denials !== undefined && { maxDenials: options.max_denials }),
      ...(options.max_denial_age_ms !== undefined && { maxDenialAgeMs: options.max_denial_age_ms }),
      now: () => now,
      fetch: async (url, init) => {
        sent.push([url, JSON.parse(String(init?.body))]);
        if (server === null || server["fails"]) throw new TypeError("fetch failed");
        now += server["took_ms"];
        return new Response(server["text"] ?? JSON.stringify(server["body"]), { status: server["status"] });
      },
    });
    for (const step of steps) {
      now = step.at_ms;
      server = step.server;
      sent.length = 0;
      const answer = call(client, step);
      if (step.error) {
        await assert.rejects(answer, (error) => {
          assert(error instanceof PacegateError);
          const { status, type, detail } = error;
          assert.deepEqual({ status, type, detail }, step.error);
          return true;
        });
      } else if (step.unavailable) {
        await assert.rejects(answer, PacegateUnavailable);
      } else if (step.decision) {
        assert.deepEqual(rounded((await answer) as Decision), decision(step.decision), `at ${step.at_ms} ms`);
      } else {
        assert.equal(await answer, step.result, `at ${step.at_ms} ms`);
      }
      const url = `http://pacegate.test/v1/${step.call ?? "check"}`;
      assert.deepEqual(sent, step.sent === null ? [] : [[url, step.sent]], `at ${step.at_ms} ms`);
    }
  });
}

test("headers", () => {
  for (const row of vectors["headers"]) assert.deepEqual(rateLimitHeaders(decision(row.decision)), row.headers);
});

test("addresses", () => {
  for (const [address, network] of vectors["addresses"]) assert.equal(clientNetwork(address), network);
});
