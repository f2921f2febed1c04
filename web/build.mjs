// dist/fast.js, one file without imports, and the types.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
fs.rmSync(path.join(here, "dist"), { recursive: true, force: true });
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
execFileSync(process.execPath, [path.join(here, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.build.json"], { cwd: here, stdio: "inherit" });
fs.copyFileSync(path.join(here, "../LICENSE"), path.join(here, "LICENSE"));
