/** Sends an operation so that it takes effect once, and says whether it did. See clients/README.md for the contract. */

export { Client } from "./client.js";
export type { Limits, OperationRequest, Options, Result, Which } from "./client.js";
export type { Answer, Why } from "./judge.js";
export { FileKeyStore, newKey } from "./keys.js";
export type { KeyStore } from "./keys.js";
