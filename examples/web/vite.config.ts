import { defineConfig } from "vite";

// From its sources, so that the page builds alone.
const FAST = new URL("../../web/src/fast.ts", import.meta.url).pathname;

export default defineConfig({
  base: "./", // the built page may lie in any folder
  build: {
    target: "es2022",
    chunkSizeWarningLimit: 8000,
    license: { fileName: "licenses.md" }, // of the modules in the page and in its worker
  },
  worker: { format: "es" },
  resolve: { alias: { "gemma4-web/fast": FAST } },
  server: { fs: { allow: [".", "../../web/src"] } },
});
