// A browser for a driver: headless Chromium, or Firefox (firefox.mjs); with WebGPU in software and a fresh profile, for caches
// go by URL. Chromium's is on SwiftShader, unless CHROMIUM_PRELOAD names the libraries of conftest.py.
// CHROMIUM_FLAGS takes the place of SwiftShader's flags, and CHROMIUM_LIBS names a folder of shared libraries for the browser
// alone: for a machine with a GPU.
import assert from "node:assert/strict";
import fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { isDeepStrictEqual } from "node:util";
import { chromium } from "playwright-core";
import { launchFirefox } from "./firefox.mjs";
import { close, STEP_MS } from "./limits.mjs";

/** A name of this machine that is no localhost to a browser (RFC 6761). */
export const INSECURE_HOST = "page.test";
const COMMON = [
  "--no-sandbox",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  `--host-resolver-rules=MAP ${INSECURE_HOST} 127.0.0.1`,
];
const SWIFTSHADER = "--use-webgpu-adapter=swiftshader --enable-unsafe-webgpu";
export const FLAGS = [...COMMON, ...(process.env.CHROMIUM_FLAGS ?? SWIFTSHADER).split(" ").filter(Boolean)];

const { CHROMIUM_PRELOAD, CHROMIUM_LIBS } = process.env;
/** The environment of a browser that computes. */
export const ENVIRONMENT = {
  ...process.env,
  ...(CHROMIUM_PRELOAD && { LD_PRELOAD: CHROMIUM_PRELOAD }),
  ...(CHROMIUM_LIBS && { LD_LIBRARY_PATH: CHROMIUM_LIBS }),
};

/**
 * A browser of its own: the Firefox that the job names, else its Chromium. `options` are Playwright's. Resolves to
 * {context, close}.
 */
export async function openBrowser(job, options = {}) {
  const profile = await fs.mkdtemp(path.join(os.tmpdir(), "browser-"));
  const context = job.firefox
    ? await launchFirefox(job.firefox, profile, options)
    : await chromium.launchPersistentContext(profile, {
        executablePath: job.chromium,
        headless: true,
        args: FLAGS,
        env: ENVIRONMENT,
        ...options,
      });
  context.setDefaultTimeout(STEP_MS);
  if (!context.pages().length) await context.newPage();
  return {
    context,
    close: async () => {
      await close(context);
      await fs.rm(profile, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}

/** Runs `action(page)` in a browser of its own. */
export async function withPage(job, action) {
  const browser = await openBrowser(job, job.firefox ? {} : { ignoreDefaultArgs: ["--enable-unsafe-swiftshader"] });
  try {
    return await action(browser.context.pages()[0]);
  } finally {
    await browser.close();
  }
}

/** Waits until a function of the page, which may take its time, says yes: page.waitForFunction takes any promise for one. */
export async function until(page, isSo, argument, timeout = STEP_MS) {
  for (const end = Date.now() + timeout; !(await page.evaluate(isSo, argument)); ) {
    if (Date.now() > end) throw new Error(`never: ${isSo}`);
    await page.waitForTimeout(50);
  }
}

/** Waits until what `look` finds is as expected; fails with how they differ. */
export async function becomes(page, look, expected, what) {
  for (const end = Date.now() + STEP_MS; ; await page.waitForTimeout(50)) {
    const found = await look();
    if (isDeepStrictEqual(found, expected)) return;
    if (Date.now() > end) assert.deepEqual(found, expected, what);
  }
}
