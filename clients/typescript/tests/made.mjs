// The digests of source and `dist`, in dist/made.json. Run after the compiler, it writes them: node tests/made.mjs
import { createHash } from "node:crypto";
import { readFile, readdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const root = new URL("../", import.meta.url);
export const FILE = new URL("dist/made.json", root);

/** Of each file that goes in, and of each that comes out. */
export async function digests() {
  const files = ["tsconfig.json"];
  for (const folder of ["src", "dist"]) {
    const names = await readdir(new URL(`${folder}/`, root));
    files.push(...names.filter((name) => name !== "made.json").map((name) => `${folder}/${name}`));
  }
  const entries = files.sort().map(async (file) => {
    const text = await readFile(new URL(file, root));
    return [file, createHash("sha256").update(text).digest("hex")];
  });
  return Object.fromEntries(await Promise.all(entries));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await writeFile(FILE, `${JSON.stringify(await digests(), null, 2)}\n`);
}
