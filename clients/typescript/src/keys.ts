/**
 * Keys, and where they are kept.
 *
 * **Invariant:** of all who save a key under one name, one wins, and all are given the winner's. Two processes that begin the same operation
 * at once send the same key.
 */

import { createHash, randomBytes, randomUUID } from "node:crypto";
import { link, mkdir, open, readFile, rename, unlink } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";

/** A key for one operation: a random UUID. */
export function newKey(): string {
  return randomUUID();
}

/** Keeps keys by the caller's names for its operations. What it has returned is durable. */
export interface KeyStore {
  /** The key under this name, or `null`. */
  load(name: string): Promise<string | null>;
  /** Keeps the key unless there is one already; returns the one that is kept. */
  save(name: string, key: string): Promise<string>;
  /** Removes this key from under this name. Another key there is another operation's, and stays. */
  forget(name: string, key: string): Promise<void>;
}

/** A file for each key, in one folder. Processes, also in other languages, may share it. */
export class FileKeyStore implements KeyStore {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async load(name: string): Promise<string | null> {
    const key = await read(this.#path(name), name).catch(ifMissing(null));
    // Who linked it may have been killed before its name was durable: sent before that, and lost with the machine's power, it would be
    // followed by a new key.
    if (key !== null) await sync(this.#folder);
    return key;
  }

  async save(name: string, key: string): Promise<string> {
    await this.#makeFolder();
    const path = this.#path(name);
    const draft = beside(path);
    const file = await open(draft, "wx", 0o600);
    try {
      await file.writeFile(`${JSON.stringify({ name, key })}\n`);
      await file.sync();
    } finally {
      await file.close();
    }
    // A rename would replace the key of whoever was first; a link cannot.
    const isFirst = await link(draft, path).then(() => true, ifExists(false));
    await unlink(draft);
    if (isFirst) await sync(this.#folder);
    const kept = isFirst ? key : await this.load(name);
    // Forgotten in between: somebody has just finished this operation.
    if (kept === null) throw new Error(`${JSON.stringify(name)} was settled by another process meanwhile; nothing was sent`);
    return kept;
  }

  async forget(name: string, key: string): Promise<void> {
    if ((await this.load(name)) !== key) return;
    const path = this.#path(name);
    // Nothing removes a file only if it holds this key: so it is taken aside first, and looked at again.
    const aside = beside(path);
    const isTaken = await rename(path, aside).then(() => true, ifMissing(false));
    if (!isTaken) return;
    // Forgotten and begun anew in between: put back, by a link, which replaces nobody's.
    if ((await read(aside, name)) !== key) await link(aside, path);
    await unlink(aside);
    await sync(this.#folder);
  }

  #path(name: string): string {
    return join(this.#folder, `${createHash("sha256").update(name).digest("hex")}.json`);
  }

  async #makeFolder(): Promise<void> {
    const topmost = await mkdir(this.#folder, { recursive: true });
    if (topmost === undefined) return;
    const above = dirname(resolve(topmost));
    for (let folder = resolve(this.#folder); folder.length > above.length; folder = dirname(folder)) await sync(dirname(folder));
  }
}

async function read(path: string, name: string): Promise<string> {
  const kept = parsed(await readFile(path, "utf8"));
  if (kept?.name === name && typeof kept.key === "string" && kept.key !== "") return kept.key;
  throw new Error(
    `${path} should hold the key of ${JSON.stringify(name)} and cannot be read as such; nothing was sent or removed. ` +
      "Restore it, or remove it once you have looked up what became of the operation.",
  );
}

/** A name in the same folder that nobody looks at. */
function beside(path: string): string {
  return `${path}.${randomBytes(8).toString("hex")}`;
}

/** A name is durable, of a file or of a folder, when the folder that it is in is. */
async function sync(path: string): Promise<void> {
  // Windows has no such thing, and no need of it.
  if (process.platform === "win32") return;
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

function parsed(text: string): { name?: unknown; key?: unknown } | null {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function ifMissing<T>(value: T): (error: unknown) => T {
  return ifCode("ENOENT", value);
}

function ifExists<T>(value: T): (error: unknown) => T {
  return ifCode("EEXIST", value);
}

function ifCode<T>(code: string, value: T): (error: unknown) => T {
  return (error) => {
    if ((error as { code?: unknown }).code === code) return value;
    throw error;
  };
}
