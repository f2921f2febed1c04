// Builds dist/, the folder to load as an extension. usage: node build.mjs PACKAGE [FOLDER]
//
// The model's libraries are programs, and those of an extension have to be part of it: they are copied from the compiled
// package. Its weights and texts are data, and come from the address that the panel is given.
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const [source, folder = path.join(here, "dist")] = process.argv.slice(2);
if (!source || !fs.existsSync(path.join(source, "provenance.json"))) {
  console.error(`expected the folder of a compiled package, found: ${source ?? "nothing"}`);
  console.error("hint: npm run build -- PACKAGE");
  process.exit(1);
}
fs.rmSync(folder, { recursive: true, force: true });
await build({
  absWorkingDir: here,
  entryPoints: ["background.js", "offscreen.js", "model.js", "panel.js", "manifest.json", "*.html", "panel.css"],
  bundle: true,
  format: "esm",
  target: "es2022",
  alias: { "gemma4-web/fast": "../../web/src/fast.ts" },
  loader: { ".json": "copy", ".html": "copy", ".css": "copy" },
  outdir: folder,
  logLevel: "warning",
});
const programs = path.join(folder, "package/resolve/main");
fs.mkdirSync(programs, { recursive: true });
for (const name of fs.readdirSync(source)) {
  if (name === "provenance.json" || name.endsWith(".wasm"))
    fs.copyFileSync(path.join(source, name), path.join(programs, name));
}
