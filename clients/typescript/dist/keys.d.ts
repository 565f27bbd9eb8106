/**
 * Keys, and where they are kept.
 *
 * **Invariant:** of all who save a key under one name, one wins, and all are given the winner's. Two processes that begin the same operation
 * at once send the same key.
 */
/** A key for one operation: a random UUID. */
export declare function newKey(): string;
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
export declare class FileKeyStore implements KeyStore {
    #private;
    constructor(folder: string);
    load(name: string): Promise<string | null>;
    save(name: string, key: string): Promise<string>;
    forget(name: string, key: string): Promise<void>;
}
