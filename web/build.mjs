// dist/fast.js and dist/choose.js, each one file without imports, and their types.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const dist = path.join(here, "dist");
const ENTRIES = ["fast", "choose"];
fs.rmSync(dist, { recursive: true, force: true });
await build({
  absWorkingDir: here,
  entryPoints: ENTRIES.map((entry) => `src/${entry}.ts`),
  outdir: "dist",
  bundle: true,
  format: "esm",
  target: "es2022",
  banner: { js: "// gemma4-web, Apache-2.0: https://www.apache.org/licenses/LICENSE-2.0" },
  logLevel: "warning",
});
execFileSync(process.execPath, [path.join(here, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.build.json"], {
  cwd: here,
  stdio: "inherit",
});
keepTypesOf(ENTRIES);
fs.copyFileSync(path.join(here, "../LICENSE"), path.join(here, "LICENSE"));

/** Keeps the declarations that a user's compiler reads, with the endings that Node's way to find files asks for. */
function keepTypesOf(entries) {
  const kept = new Set();
  const follow = (name) => {
    if (kept.has(name)) return;
    kept.add(name);
    const file = path.join(dist, `${name}.d.ts`);
    const text = fs.readFileSync(file, "utf8").replaceAll(/(\bfrom ")(\.{1,2}\/[\w/]+)"/g, (_, from, next) => {
      follow(path.posix.join(path.posix.dirname(name), next));
      return `${from}${next}.js"`;
    });
    fs.writeFileSync(file, text);
  };
  entries.forEach(follow);
  for (const file of fs.readdirSync(dist, { recursive: true })) {
    if (file.endsWith(".d.ts") && !kept.has(file.slice(0, -".d.ts".length).replaceAll("\\", "/")))
      fs.rmSync(path.join(dist, file));
  }
}
