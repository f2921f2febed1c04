// Headless Chromium with WebGPU on SwiftShader and a fresh profile: caches go by URL.
import fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { chromium } from "playwright-core";

export const FLAGS = [
  "--no-sandbox",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--use-webgpu-adapter=swiftshader",
  "--enable-unsafe-webgpu",
];

/** Runs `action(page)` in a browser of its own. */
export async function withPage(executablePath, action) {
  const profile = await fs.mkdtemp(path.join(os.tmpdir(), "chromium-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath,
    headless: true,
    args: FLAGS,
  });
  try {
    return await action(context.pages()[0] ?? (await context.newPage()));
  } finally {
    await context.close();
    await fs.rm(profile, { recursive: true, force: true });
  }
}
