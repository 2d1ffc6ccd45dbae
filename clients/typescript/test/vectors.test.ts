import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { type CheckRequest, type Decision, clientNetwork, Pacegate, PacegateError, rateLimitHeaders } from "@pacegate/client";

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
  };
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
        assert.equal(url, "http://pacegate.test/v1/check");
        sent.push(JSON.parse(String(init?.body)));
        if (server === null || server["fails"]) throw new TypeError("fetch failed");
        now += server["took_ms"];
        return new Response(server["text"] ?? JSON.stringify(server["body"]), { status: server["status"] });
      },
    });
    for (const step of steps) {
      now = step.at_ms;
      server = step.server;
      sent.length = 0;
      const check = client.check(step.request as CheckRequest);
      if (step.error) {
        await assert.rejects(check, (error) => {
          assert(error instanceof PacegateError);
          const { status, type, detail } = error;
          assert.deepEqual({ status, type, detail }, step.error);
          return true;
        });
      } else {
        assert.deepEqual(rounded(await check), decision(step.decision), `at ${step.at_ms} ms`);
      }
      assert.deepEqual(sent, step.sent === null ? [] : [step.sent], `at ${step.at_ms} ms`);
    }
  });
}

test("headers", () => {
  for (const row of vectors["headers"]) assert.deepEqual(rateLimitHeaders(decision(row.decision)), row.headers);
});

test("addresses", () => {
  for (const [address, network] of vectors["addresses"]) assert.equal(clientNetwork(address), network);
});
