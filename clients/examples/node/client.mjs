// Orders what it is told to, once, however often it is started: node client.mjs "order 17" apples
import { Client, FileKeyStore } from "../../typescript/dist/index.js";

const [name = "order 17", item = "apples"] = process.argv.slice(2);
const client = new Client({ keys: new FileKeyStore(process.env.KEYS ?? "keys"), deadlineMs: 60_000 });
const url = `${process.env.GATEWAY ?? "http://127.0.0.1:8080"}/orders`;
const result = await client.run({ url, headers: { authorization: "Bearer me" }, json: { item } }, { name });

switch (result.outcome) {
  case "happened":
    console.log(`ordered${result.replayed ? ", earlier" : ""}: ${new TextDecoder().decode(result.answer.body ?? undefined)}`);
    break;
  case "did_not_happen":
    console.log(`not ordered: ${result.why}`);
    break;
  case "may_have_happened":
    console.log(`not known yet (${result.why}): start this again, and it goes on with the key ${result.key}`);
    process.exitCode = 1;
}
// Here a real program would first write the result down. Then the key may go: a later order of this name is another order.
if (process.env.DONE) await client.done(result);
