// Compiled, not run: what a user of the package sees of its types.
import { Client, FileKeyStore, type KeyStore, type Result } from "../dist/index.js";

const keys: KeyStore = new FileKeyStore("keys");
const client = new Client({ keys, deadlineMs: 1000 });

export async function pay(signal: AbortSignal): Promise<string> {
  const result: Result = await client.run({ url: "https://api.example/payments", json: { amount: 100 } }, { name: "order 17", signal });
  switch (result.outcome) {
    case "happened":
      return `${result.answer.status} ${result.replayed}`;
    case "did_not_happen":
    case "may_have_happened":
      return `${result.why} ${result.answer?.status ?? result.error?.message}`;
  }
}

// @ts-expect-error an outcome has to be looked at before its answer
export const status = (result: Result): number => result.answer.status;
