import { defineConfig } from "vite";
import { licenses } from "./licenses";
import { offline } from "./offline/plugin.js";

// From its sources, so that the page builds alone.
const moduleOf = (name: string) => new URL(`../../web/src/${name}.ts`, import.meta.url).pathname;

const LICENSES = licenses("licenses.txt");

export default defineConfig({
  base: "./", // the built page may lie in any folder
  build: { target: "es2022", chunkSizeWarningLimit: 8000 },
  plugins: [LICENSES.page, offline()],
  worker: { format: "es", plugins: () => [LICENSES.worker] },
  resolve: { alias: { "gemma4-web/fast": moduleOf("fast"), "gemma4-web/choose": moduleOf("choose") } },
  server: { fs: { allow: [".", "../../web/src"] } },
});
