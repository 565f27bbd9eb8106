// A server that does what a script says, request by request, and writes down what it was sent.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { once } from "node:events";

export const contract = JSON.parse(readFileSync(new URL("../../contract.json", import.meta.url), "utf8"));

export async function scripted(steps) {
  const requests = [];
  const waiting = [];
  const server = createServer(async (request, response) => {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    const { method, url, headers } = request;
    requests.push({ line: `${method} ${url}`, method, headers, body: Buffer.concat(pieces).toString() });
    for (const resolve of waiting.splice(0)) resolve();
    const last = steps.at(-1);
    const step = steps[requests.length - 1] ?? (last?.forever ? last : { status: 599 });
    perform(step, request, response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${server.address().port}/payments`,
    requests,
    hasBeenAsked: () => (requests.length > 0 ? Promise.resolve() : new Promise((resolve) => waiting.push(resolve))),
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

function perform(step, request, response) {
  if (step.do === "hang") return;
  if (step.do === "reset") return void request.socket.resetAndDestroy();
  if (step.do === "cut") {
    response.writeHead(201, { "content-length": 100, ...contract.kept });
    response.write("{", () => request.socket.destroy());
    return;
  }
  if (step.do === "cut_head") return void request.socket.end("HTTP/1.1 403 Forbidden\r\nidempotency-expires: x\r\nconte");
  if (step.do === "trickle") return trickle(request.socket);
  const headers = { ...(step.kept && contract.kept), ...(step.replayed && contract.replayed), ...step.headers };
  let body = step.json;
  if (step.problem) {
    headers["content-type"] = "application/problem+json";
    body = { type: `https://oncegate.dev/problems/${step.problem}`, status: step.status, code: step.problem, ...step.more };
  }
  response.writeHead(step.status, headers).end(body === undefined ? "" : JSON.stringify(body));
}

/** A body that ends with its connection, until the client hangs up. */
function trickle(socket) {
  socket.write("HTTP/1.1 201 Created\r\nconnection: close\r\nidempotency-expires: x\r\n\r\n");
  const drops = setInterval(() => socket.write("."), 20);
  socket.on("error", () => {}).on("close", () => clearInterval(drops));
}

const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

/** The limits of a case, as the client spells them. */
export function limits(more) {
  return Object.fromEntries(Object.entries({ ...contract.limits, ...more }).map(([name, value]) => [camel(name), value]));
}
