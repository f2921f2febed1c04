// dist/fast.js, one file without imports, and its types.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const dist = path.join(here, "dist");
fs.rmSync(dist, { recursive: true, force: true });
await build({
  absWorkingDir: here,
  entryPoints: ["src/fast.ts"],
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
keepTypesOf("fast");
fs.copyFileSync(path.join(here, "../LICENSE"), path.join(here, "LICENSE"));

/** Keeps the declarations that a user's compiler reads, with the endings that Node's way to find files asks for. */
function keepTypesOf(entry) {
  const kept = new Set();
  const follow = (name) => {
    if (kept.has(name)) return;
    kept.add(name);
    const file = path.join(dist, `${name}.d.ts`);
    const text = fs.readFileSync(file, "utf8").replaceAll(/(\bfrom "\.\/)([\w/]+)"/g, (_, from, next) => {
      follow(next);
      return `${from}${next}.js"`;
    });
    fs.writeFileSync(file, text);
  };
  follow(entry);
  for (const file of fs.readdirSync(dist)) {
    if (file.endsWith(".d.ts") && !kept.has(file.slice(0, -".d.ts".length))) fs.rmSync(path.join(dist, file));
  }
}
