// Runs the operations of a file, so many at once, and writes down what became of each. Started, and killed, by storm.py.
import { appendFileSync, readFileSync } from "node:fs";
import { Client, FileKeyStore } from "../dist/index.js";

const [url, keys, jobsFile, resultsFile, workers, tryTimeoutMs] = process.argv.slice(2);
const jobs = readFileSync(jobsFile, "utf8").trim().split("\n").map((line) => JSON.parse(line));
const client = new Client({
  keys: new FileKeyStore(keys),
  tryTimeoutMs: Number(tryTimeoutMs),
  backoffMs: 20,
  backoffMaxMs: 500,
  retryAfterMaxMs: 500,
});

async function work() {
  for (let job = jobs.shift(); job !== undefined; job = jobs.shift()) {
    const { name, path, prefer, amount, currency, deadline_ms: deadlineMs, attempts_max: attemptsMax } = job;
    const headers = { authorization: "Bearer storm", ...(prefer && { prefer }) };
    const request = { url: url + path, headers, json: { amount, currency } };
    const result = await client.run(request, { name, deadlineMs, attemptsMax });
    const { outcome, key, attempts, why, replayed, answer } = result;
    const body = answer?.body ? new TextDecoder().decode(answer.body) : null;
    const line = { name, amount, outcome, key, attempts, why, replayed, status: answer?.status, body, error: String(result.error?.cause ?? result.error) };
    appendFileSync(resultsFile, `${JSON.stringify(line)}\n`);
    await client.done(result);
  }
}

await Promise.all(Array.from({ length: Number(workers) }, work));
