// `dist` is committed: what runs must have been made from the source that is beside it. Without the compiler that shows in digests, which
// `npm run build` writes beside them; clients/types.sh has the compiler, and compares the files themselves.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { FILE, digests } from "./made.mjs";

test("dist was made from the source beside it, and was not changed by hand", async () => {
  const made = JSON.parse(await readFile(FILE, "utf8"));
  assert.deepEqual(await digests(), made, "dist is stale: `npm install && npm run build` in clients/typescript makes it again");
});
