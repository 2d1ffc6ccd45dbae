import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import test from "node:test";

import express from "express";
import { Pacegate, rateLimit } from "@pacegate/client";

const url = process.env["PACEGATE_URL"];
const real = { skip: url === undefined && "PACEGATE_URL is not set" };
const unique = `typescript-${process.pid}-${Date.now()}`;

function patient(failure: "open" | "closed" = "open"): Pacegate {
  return new Pacegate({ url: url ?? "", failure, deadlineMs: 20_000 });
}

async function listening(server: ReturnType<typeof createServer>): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test("a denied flood stays in the process", real, async () => {
  const client = patient();
  const requests = async () => (await (await fetch(`${url}/v1/stats`)).json()).listeners[0].requests as number;
  const before = await requests();
  let [calls, allowed] = [0, 0];
  const worker = async () => {
    while (calls++ < 100_000) {
      const decision = await client.check({ key: unique, limit: "5/day" });
      assert.equal(decision.degraded, false);
      if (decision.allowed) allowed++;
    }
  };
  await Promise.all(Array.from({ length: 20 }, worker));
  const sent = (await requests()) - before;
  console.log(`100,000 calls, ${allowed} allowed, ${sent} requests to the server`);
  // A day may end during the test.
  assert(allowed === 5 || allowed === 10, `${allowed} allowed`);
  assert(sent < 1000, `${sent} requests`);
});

test("Express answers 429 with the headers of the decision", real, async () => {
  const app = express();
  app.use(rateLimit(patient(), { request: () => ({ key: `${unique}-express`, limit: "2/day" }) }));
  app.get("/", (_request, response) => void response.send("hello"));
  const server = createServer(app);
  const address = await listening(server);
  try {
    const answers = [];
    for (let n = 0; n < 3; n++) answers.push(await fetch(address));
    assert.deepEqual(answers.map((answer) => answer.status), [200, 200, 429]);
    assert.match(answers[0]?.headers.get("RateLimit") ?? "", /^"inline";r=1;t=\d+$/);
    assert.match(answers[2]?.headers.get("Retry-After") ?? "", /^\d+$/);
    assert.deepEqual(await answers[2]?.json(), { error: "too many requests" });
    assert.equal((await fetch(`${address}/${"x".repeat(1024)}`)).status, 414);
  } finally {
    server.close();
  }
});

test("the path has no query and no host", async () => {
  const targets = { "/a/b?c#d": "/a/b", "http://shop.example/login?x": "/login", "http://shop.example": "/", "//x/y": "//x/y" };
  for (const [target, path] of Object.entries(targets)) {
    let sent: { attributes: unknown } | undefined;
    const answer = { allowed: true, source: "unlimited", revision: 1 };
    const record: typeof fetch = async (_url, init) => {
      sent = JSON.parse(String(init?.body));
      return new Response(JSON.stringify(answer));
    };
    const limit = rateLimit(new Pacegate({ url: "http://pacegate.test", failure: "open", fetch: record }));
    const request = { method: "GET", url: target, socket: { remoteAddress: "2001:db8::1" } };
    const response = { statusCode: 200, setHeader: () => {}, end: () => assert.fail("the request was denied") };
    await limit(request, response, assert.ifError);
    assert.deepEqual(sent?.attributes, { ip: "2001:db8::", method: "GET", path });
  }
});

test("a silent server is bounded by the deadline", async () => {
  const server = createServer(() => {});
  const address = await listening(server);
  try {
    for (const failure of ["open", "closed"] as const) {
      const reasons: unknown[] = [];
      const onUnavailable = (error: unknown) => reasons.push(error);
      const client = new Pacegate({ url: address, failure, deadlineMs: 50, onUnavailable });
      const decision = await client.check({ attributes: { user: "alice" } });
      assert.deepEqual([decision.allowed, decision.degraded], [failure === "open", true]);
      assert.equal((reasons[0] as Error).name, "TimeoutError");
    }
  } finally {
    server.closeAllConnections();
    server.close();
  }
});
