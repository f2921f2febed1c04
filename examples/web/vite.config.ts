import { defineConfig } from "vite";
import { offline } from "./offline/plugin.js";

// From its sources, so that the page builds alone.
const FAST = new URL("../../web/src/fast.ts", import.meta.url).pathname;

export default defineConfig({
  base: "./", // the built page may lie in any folder
  build: { target: "es2022", chunkSizeWarningLimit: 8000 },
  worker: { format: "es" },
  plugins: [offline()],
  resolve: { alias: { "gemma4-web/fast": FAST } },
  server: { fs: { allow: [".", "../../web/src"] } },
});
