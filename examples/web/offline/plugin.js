// Writes sw.js after a build: service_worker.js, and in front of it what it has to keep.
import { createHash } from "node:crypto";
import fs from "node:fs/promises";
import path from "node:path";

/** What the page consists of; other files of a build, such as licences, need no keeping. */
const PARTS = /\.(html|js|css|svg|png|wav|woff2|wasm)$/;
const NAME = "sw.js";

const sha256 = (data) => createHash("sha256").update(data).digest("hex");

/** Writes the service worker of a built page into its folder. */
export async function writeWorker(folder) {
  const found = await fs.readdir(folder, { recursive: true });
  const names = found.map((name) => name.replaceAll(path.sep, "/")).filter((name) => PARTS.test(name) && name !== NAME);
  const files = {};
  for (const name of names.sort()) files[name] = sha256(await fs.readFile(path.join(folder, name)));
  const version = sha256(JSON.stringify(files)).slice(0, 16);
  const worker = await fs.readFile(path.join(import.meta.dirname, "service_worker.js"), "utf8");
  await fs.writeFile(path.join(folder, NAME), `const BUILD = ${JSON.stringify({ version, files })};\n${worker}`);
}

/** The plugin for Vite. */
export function offline() {
  return {
    name: "offline",
    apply: "build",
    writeBundle: { order: "post", sequential: true, handler: ({ dir }) => writeWorker(dir) },
  };
}
