// Takes orders, and knows nothing of retries: the gateway in front sends it each of them once.
// All it does for that: it keeps the key that it is sent, and can be asked for it, so that the gateway finds out what became of an order
// whose answer was lost.
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, writeSync } from "node:fs";
import http from "node:http";

const FILE = process.env.ORDERS ?? "orders.jsonl";
const orders = existsSync(FILE) ? readFileSync(FILE, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line)) : [];
const file = openSync(FILE, "a");

function take(item, key) {
  const order = { id: orders.length + 1, item, key };
  writeSync(file, `${JSON.stringify(order)}\n`);
  fsyncSync(file);
  orders.push(order);
  return order;
}

const server = http.createServer(async (request, response) => {
  const url = new URL(request.url, "http://localhost");
  let body = "";
  for await (const piece of request) body += piece;
  const answer = (status, value) =>
    response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
  if (url.pathname !== "/orders") return answer(404, { error: "there are only /orders" });
  if (request.method === "GET") {
    const key = url.searchParams.get("key");
    return answer(200, { orders: orders.filter((order) => key === null || order.key === key) });
  }
  if (request.method !== "POST") return answer(405, { error: "GET or POST" });
  let item;
  try {
    ({ item } = JSON.parse(body));
  } catch {
    // Falls through: it has no item.
  }
  if (typeof item !== "string") return answer(422, { error: 'an order is {"item": "…"}' });
  answer(201, take(item, request.headers["idempotency-key"]?.replaceAll('"', "")));
});
server.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () => console.log(`listens on ${server.address().port}`));
process.on("SIGTERM", () => server.close(() => closeSync(file)));
