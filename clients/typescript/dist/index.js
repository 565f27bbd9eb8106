/** Sends an operation so that it takes effect once, and says whether it did. See clients/README.md for the contract. */
export { Client } from "./client.js";
export { FileKeyStore, newKey } from "./keys.js";
