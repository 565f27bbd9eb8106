// An API that knows nothing of idempotency. On stderr it says where it listens, and each time it acts.
const http = require("node:http");

let acts = 0;
const server = http.createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    acts += 1;
    console.error(`acted ${request.headers["idempotency-key"]}`);
    if (request.url === "/hang") return;
    const { amount } = JSON.parse(Buffer.concat(pieces));
    const answer = JSON.stringify({ act: acts, amount });
    response.writeHead(201, { "content-type": "application/json", "content-length": Buffer.byteLength(answer) });
    response.end(answer);
  });
});
server.listen(0, "127.0.0.1", () => console.error(`listens on ${server.address().port}`));
