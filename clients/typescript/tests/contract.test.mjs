// Every row of the contract, against a server that follows the case's script.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client } from "../dist/index.js";
import { contract, limits, scripted } from "./scripted.mjs";

const GIVEN = "8e03978e-40d5-43dd-bc93-6894a57f9324";

for (const row of contract.cases) {
  test(`${row.row}: ${row.name}`, async () => {
    const server = await scripted(row.steps);
    try {
      const client = new Client(limits(row.limits));
      const request = { url: server.url, headers: { authorization: "Bearer me" }, json: { amount: 100 } };
      const result = await client.run(request, row.resumed ? { key: GIVEN } : {});
      assert.deepEqual(seen(result, row.is), row.is);
      checkRequests(server.requests, row, result.key);
      assert.equal(result.key === GIVEN, row.resumed ?? false);
    } finally {
      await server.close();
    }
  });
}

/** What the case speaks of. */
function seen(result, is) {
  const all = {
    outcome: result.outcome,
    why: result.why,
    attempts: result.attempts,
    replayed: result.replayed,
    status: result.answer?.status,
    location: result.answer?.headers.get("location"),
    has_body: result.answer?.body !== null,
  };
  return Object.fromEntries(Object.keys(is).map((name) => [name, all[name]]));
}

/** One key and the same bytes each time; questions carry who asks, and nothing else. */
function checkRequests(requests, row, key) {
  if (row.requests) assert.deepEqual(requests.map((request) => request.line), row.requests);
  assert.ok(row.steps.at(-1).forever || requests.length === row.steps.length, `${requests.length} requests`);
  for (const { method, headers, body } of requests) {
    assert.equal(headers.authorization, "Bearer me");
    assert.equal(headers["idempotency-key"], method === "POST" ? `"${key}"` : undefined);
    assert.equal(body, method === "POST" ? '{"amount":100}' : "");
  }
}
