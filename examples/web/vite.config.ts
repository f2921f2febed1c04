import { defineConfig } from "vite";

export default defineConfig({
  base: "./", // the built page may lie in any folder
  build: { target: "es2022", chunkSizeWarningLimit: 8000 },
  worker: { format: "es" },
});
