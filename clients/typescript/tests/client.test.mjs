// What the contract's table has no row for: keys and where they are kept, waiting, giving up, what cannot be sent.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, open, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { createServer as createTlsServer } from "node:https";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { delayMs, retryAfterMs } from "../dist/backoff.js";
import { Client, FileKeyStore, newKey } from "../dist/index.js";
import { limits, scripted } from "./scripted.mjs";

const ANSWER = { status: 201, kept: true, json: { id: 1 } };

async function withFolder(act) {
  const folder = await mkdtemp(join(tmpdir(), "oncegate-keys-"));
  try {
    await act(new FileKeyStore(join(folder, "keys")), join(folder, "keys"));
  } finally {
    await rm(folder, { recursive: true });
  }
}

async function withServer(steps, act) {
  const server = await scripted(steps);
  try {
    await act(server);
  } finally {
    await server.close();
  }
}

const keyOf = (request) => request.headers["idempotency-key"];

test("keys are random UUIDs, another for each operation", async () => {
  const keys = new Set(Array.from({ length: 1000 }, newKey));
  assert.equal(keys.size, 1000);
  for (const key of keys) assert.match(key, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  await withServer([ANSWER, ANSWER], async (server) => {
    const client = new Client(limits());
    await client.run({ url: server.url });
    await client.run({ url: server.url });
    assert.notEqual(keyOf(server.requests[0]), keyOf(server.requests[1]));
  });
});

// Its file was linked by a process that was killed before it had synced the folder. Sent, and lost with the power: then a new key.
test("a key that is found is durable before it is used", async () => {
  await withFolder(async (keys, folder) => {
    await keys.save("a", "kept");
    const here = await open(folder);
    const { ino } = await here.stat();
    await here.close();
    const handles = Object.getPrototypeOf(here);
    const { sync } = handles;
    const synced = [];
    handles.sync = async function () {
      synced.push((await this.stat()).ino);
      return sync.call(this);
    };
    try {
      assert.equal(await keys.load("a"), "kept");
      assert.deepEqual(synced, [ino]);
      // Nor does one use it before who finds it when it would save another.
      synced.length = 0;
      assert.equal(await keys.save("a", "another"), "kept");
      assert.equal(synced.at(-1), ino);
    } finally {
      handles.sync = sync;
    }
  });
});

test("the key is kept before the first byte is sent", async () => {
  await withServer([ANSWER], async (server) => {
    const refuses = { load: async () => null, save: async () => Promise.reject(new Error("disk full")), forget: async () => {} };
    await assert.rejects(new Client({ ...limits(), keys: refuses }).run({ url: server.url }, { name: "a" }), /disk full/);
    assert.equal(server.requests.length, 0);
  });
});

test("a process that dies goes on with its key", async () => {
  await withFolder(async (keys, folder) => {
    await withServer([{ do: "hang" }, { status: 201, replayed: true }], async (server) => {
      const run = `import { Client, FileKeyStore } from ${JSON.stringify(new URL("../dist/index.js", import.meta.url).href)};
        await new Client({ keys: new FileKeyStore(${JSON.stringify(folder)}) }).run({ url: ${JSON.stringify(server.url)} }, { name: "order 17" });`;
      const process_ = spawn(process.execPath, ["--input-type=module", "-e", run], { stdio: "inherit" });
      await server.hasBeenAsked();
      process_.kill("SIGKILL");
      await once(process_, "exit");
      const result = await new Client({ ...limits(), keys }).run({ url: server.url }, { name: "order 17" });
      assert.deepEqual([result.outcome, result.replayed], ["happened", true]);
      assert.equal(keyOf(server.requests[0]), keyOf(server.requests[1]));
    });
  });
});

test("what comes back to a kept key may have happened before", async () => {
  await withFolder(async (keys) => {
    await withServer([{ do: "reset" }, { status: 403 }], async (server) => {
      const client = new Client({ ...limits(), attemptsMax: 1, keys });
      const first = await client.run({ url: server.url }, { name: "a" });
      const second = await client.run({ url: server.url }, { name: "a" });
      assert.deepEqual([first.outcome, second.outcome, second.why], ["may_have_happened", "may_have_happened", "refused"]);
      assert.equal(first.key, second.key);
    });
  });
});

test("a key is forgotten when the caller has taken note of a certain result, and not before", async () => {
  await withFolder(async (keys) => {
    await withServer([{ do: "reset" }, { status: 201, replayed: true }, ANSWER], async (server) => {
      const client = new Client({ ...limits(), keys });
      const inDoubt = await client.run({ url: server.url }, { name: "a", attemptsMax: 1 });
      assert.equal(await client.done(inDoubt), false);
      assert.equal(await keys.load("a"), inDoubt.key);
      const known = await client.run({ url: server.url }, { name: "a" });
      assert.equal(known.key, inDoubt.key);
      assert.equal(await keys.load("a"), known.key, "a caller that dies now asks with the same key");
      assert.equal(await client.done(known), true);
      assert.equal(await keys.load("a"), null);
      const another = await client.run({ url: server.url }, { name: "a" });
      assert.notEqual(another.key, known.key);
    });
  });
});

// Two workers were refused under one key. One is done with it and begins anew; then the other says that it is done.
test("a late done does not forget the key of the next operation under its name", async () => {
  await withFolder(async (keys, folder) => {
    await withServer([{ status: 402, kept: true }, { status: 402, replayed: true }, { do: "reset" }, { status: 201, replayed: true }], async (server) => {
      const client = new Client({ ...limits(), keys });
      const run = (more) => client.run({ url: server.url }, { name: "a", ...more });
      const [mine, other] = [await run(), await run()];
      assert.deepEqual([mine.outcome, other.outcome, mine.key], ["did_not_happen", "did_not_happen", other.key]);
      assert.equal(await client.done(mine), true);
      const anew = await run({ attemptsMax: 1 });
      assert.equal(anew.outcome, "may_have_happened");
      for (const _ of [1, 2]) {
        assert.equal(await client.done(other), true);
        assert.equal(await keys.load("a"), anew.key);
      }
      assert.equal((await run()).key, anew.key);
      assert.equal((await readdir(folder)).length, 1, "nothing is left aside");
    });
  });
});

// The moment between the look and the removal, in which another process forgets the key and begins anew.
test("a key that is begun anew while the old one is forgotten is put back", async () => {
  await withFolder(async (keys, folder) => {
    class Overtaken extends FileKeyStore {
      async load(name) {
        const kept = await super.load(name);
        await keys.forget(name, "old");
        await keys.save(name, "new");
        return kept;
      }
    }
    await keys.save("a", "old");
    await new Overtaken(folder).forget("a", "old");
    assert.equal(await keys.load("a"), "new");
    assert.equal((await readdir(folder)).length, 1, "nothing is left aside");
  });
});

test("of many who begin the same operation at once, all get one key", async () => {
  await withFolder(async (keys, folder) => {
    const saved = await Promise.all(Array.from({ length: 50 }, () => keys.save("a", newKey())));
    assert.equal(new Set(saved).size, 1);
    assert.equal((await readdir(folder)).length, 1, "no drafts are left");
  });
});

test("a key file that cannot be read stops the operation before anything is sent", async () => {
  await withFolder(async (keys, folder) => {
    await keys.save("a", newKey());
    const [file] = await readdir(folder);
    for (const damage of ["", '{"name":"a"', '{"name":"b","key":"k"}', '{"name":"a","key":""}']) {
      await writeFile(join(folder, file), damage);
      await assert.rejects(new Client({ keys }).run({ url: "http://127.0.0.1:1" }, { name: "a" }), /cannot be read/);
    }
  });
});

test("key files are the same in every language", async () => {
  await withFolder(async (keys, folder) => {
    await keys.save("order 17 ü", "8e03978e-40d5-43dd-bc93-6894a57f9324");
    const file = "eedf279b3f4be4775e56b001ad8e31364a0438c05839fc7ff84cd147f5588e8e.json";
    assert.deepEqual(await readdir(folder), [file]);
    const kept = JSON.parse(await readFile(join(folder, file), "utf8"));
    assert.deepEqual(kept, { name: "order 17 ü", key: "8e03978e-40d5-43dd-bc93-6894a57f9324" });
  });
});

test("nobody listens: nothing was sent, and it did not happen", async () => {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  for (const host of ["127.0.0.1", "localhost"]) {
    const result = await new Client({ ...limits(), attemptsMax: 3 }).run({ url: `http://${host}:${port}/` });
    assert.deepEqual([result.outcome, result.why, result.attempts], ["did_not_happen", "attempts", 3], `${host} ${result.error?.cause}`);
    assert.ok(result.error);
  }
  const nowhere = await new Client({ ...limits(), attemptsMax: 1 }).run({ url: "http://nowhere.invalid/" });
  assert.equal(nowhere.outcome, "did_not_happen");
  const going = await new Client({ ...limits(), attemptsMax: 1 }).run({ url: `http://127.0.0.1:${port}/` }, { key: newKey() });
  assert.equal(going.outcome, "may_have_happened", "an earlier process may have sent it");
});

test("by TLS a server that is not trusted was sent nothing", async () => {
  const pem = await readFile(new URL("../../for-tests.pem", import.meta.url));
  const server = createTlsServer({ cert: pem, key: pem }, () => assert.fail("a request came")).listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const url = `https://127.0.0.1:${server.address().port}/`;
    const result = await new Client({ ...limits(), attemptsMax: 2 }).run({ url });
    assert.deepEqual([result.outcome, result.why, result.attempts], ["did_not_happen", "attempts", 2], String(result.error?.cause));
    assert.equal(result.error.cause.code, "DEPTH_ZERO_SELF_SIGNED_CERT");
  } finally {
    server.close();
    await once(server, "close");
  }
});

test("given up while a try is under way it may have happened; before the first, it did not", async () => {
  await withServer([{ do: "hang", forever: true }], async (server) => {
    const giveUp = new AbortController();
    const running = new Client(limits()).run({ url: server.url }, { signal: giveUp.signal });
    await server.hasBeenAsked();
    giveUp.abort();
    const result = await running;
    assert.deepEqual([result.outcome, result.why, result.attempts], ["may_have_happened", "cancelled", 1]);
    assert.equal(result.error.message, "cancelled", "the try was ended, and did not end by its own time-out");
    const never = await new Client(limits()).run({ url: server.url }, { signal: giveUp.signal });
    assert.deepEqual([never.outcome, never.why, never.attempts], ["did_not_happen", "cancelled", 0]);
    assert.equal(server.requests.length, 1);
  });
});

test("given up while it waits, it ends at once", async () => {
  await withServer([{ status: 503, problem: "overloaded", headers: { "retry-after": "20" } }], async (server) => {
    const giveUp = new AbortController();
    const running = new Client({ ...limits(), retryAfterMaxMs: 25_000 }).run({ url: server.url }, { signal: giveUp.signal });
    await server.hasBeenAsked();
    const since = performance.now();
    giveUp.abort();
    assert.equal((await running).why, "cancelled");
    assert.ok(performance.now() - since < 10_000);
  });
});

test("a wait is never shorter than the server asks, and never longer than the bounds", () => {
  const bounds = { backoffMs: 100, backoffMaxMs: 1000, retryAfterMaxMs: 5000 };
  const now = Date.parse("Fri, 01 Jan 2038 00:00:00 GMT");
  const wait = (attempts, headers, dice) => delayMs(attempts, headers && new Headers(headers), bounds, now, dice);
  assert.deepEqual([1, 2, 3, 4, 5, 6, 5000].map((n) => wait(n, null, 0.5)), [50, 100, 200, 400, 500, 500, 500]);
  assert.equal(wait(5, null, 0), 0, "full jitter reaches down to nothing");
  assert.deepEqual([0, 0.5].map((dice) => wait(1, { "retry-after": "2" }, dice)), [2000, 2050]);
  assert.equal(wait(1, { "retry-after": "3600" }, 0), 5000);
  assert.equal(retryAfterMs(new Headers({ "retry-after": "Fri, 01 Jan 2038 00:00:03 GMT" }), now), 3000);
  assert.equal(retryAfterMs(new Headers({ "retry-after": "Thu, 31 Dec 2037 23:59:59 GMT" }), now), 0);
  const dated = { "retry-after": "Fri, 01 Jan 2038 01:00:03 GMT", date: "Fri, 01 Jan 2038 01:00:00 GMT" };
  assert.equal(retryAfterMs(new Headers(dated), now), 3000, "by the clock of whoever wrote it");
  for (const junk of ["", "soon", "-1", "1.5x"]) assert.equal(retryAfterMs(new Headers({ "retry-after": junk }), now), 0, junk);
});

test("Retry-After is waited for", async () => {
  await withServer([{ status: 409, problem: "in_progress", headers: { "retry-after": "1" } }, ANSWER], async (server) => {
    const since = performance.now();
    await new Client({ ...limits(), retryAfterMaxMs: 300 }).run({ url: server.url });
    assert.ok(performance.now() - since >= 299);
  });
});

test("what cannot be sent is refused before a key is made", async () => {
  const client = new Client();
  const refused = (request, which, words) => assert.rejects(client.run(request, which), words);
  await refused({ url: "not a url" }, {}, /Invalid URL/);
  await refused({ url: "ftp://host/" }, {}, /not an http/);
  await refused({ url: "http://host/", headers: { "Idempotency-Key": "x" } }, {}, /the client's to make/);
  await refused({ url: "http://me:secret@host/" }, {}, /credentials/);
  await refused({ url: "http://host/", method: "GE T" }, {}, /method/);
  await refused({ url: "http://host/", method: "GET", body: "x" }, {}, /GET/);
  await refused({ url: "http://host/", headers: { "Content-Length": "1" } }, {}, /the client's to set/);
  await refused({ url: "http://host/" }, { name: "a", key: "b" }, /not both/);
  await refused({ url: "http://host/", body: "x", json: {} }, {}, /not both/);
  await refused({ url: "http://host/" }, { name: "a" }, /no `keys`/);
  await refused({ url: "http://host/" }, { key: 'a"b' }, /visible ASCII/);
  await refused({ url: "http://host/" }, { deadlineMs: Number.NaN }, /deadlineMs/);
  assert.throws(() => new Client({ attemptsMax: -1 }), /attemptsMax/);
});

test("a key may be sent bare", async () => {
  await withServer([ANSWER], async (server) => {
    const result = await new Client({ ...limits(), keyForm: "bare" }).run({ url: server.url });
    assert.equal(keyOf(server.requests[0]), result.key);
  });
});
