// Limits for what a driver waits for: neither page.evaluate nor the end of a browser has one of its own.

/** Of what takes a moment on an idle machine: a busy one takes a hundred times as long, and only what hangs takes longer. */
export const STEP_MS = 120_000;
/** Of an answer, or of a model's start, on a device in software. */
export const ANSWER_MS = 240_000;
const CLOSE_MS = 30_000;

/** A promise that fails after `ms`, and says for what it waited; `wait` is a promise or what starts one. */
export async function within(ms, what, wait) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited ${ms / 1000} s for ${what}`)), ms);
  });
  try {
    return await Promise.race([typeof wait === "function" ? wait() : wait, limit]);
  } finally {
    clearTimeout(timer);
  }
}

/** Closes a browser that may hang; a driver ends by process.exit, and the browser with it. */
export async function close(context) {
  await within(CLOSE_MS, "the browser to close", context.close()).catch((error) => console.error(String(error)));
}
