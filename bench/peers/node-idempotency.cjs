// A plain Node server whose POST is protected by @node-idempotency/core with its Redis adapter.
const http = require("node:http");
const { Idempotency } = require("@node-idempotency/core");
const { RedisStorageAdapter } = require("@node-idempotency/storage-adapter-redis");

const answer = { id: "pay_0123456789", status: "succeeded", note: "x".repeat(146) };

async function serve() {
  const storage = new RedisStorageAdapter({ url: process.env.REDIS_URL });
  await storage.connect();
  const idempotency = new Idempotency(storage, { enforceIdempotency: true });
  const server = http.createServer((request, response) => {
    const pieces = [];
    request.on("data", (piece) => pieces.push(piece));
    request.on("end", async () => {
      const body = JSON.parse(Buffer.concat(pieces).toString() || "null");
      const asked = { headers: request.headers, path: request.url, method: request.method, body };
      try {
        const kept = await idempotency.onRequest(asked);
        if (!kept) await idempotency.onResponse(asked, { body: answer });
        const text = JSON.stringify(kept ? kept.body : answer);
        response.writeHead(201, { "content-type": "application/json", "content-length": Buffer.byteLength(text) });
        response.end(text);
      } catch (error) {
        response.writeHead(409).end(String(error));
      }
    });
  });
  server.listen(Number(process.env.PORT), "127.0.0.1");
}

serve();
