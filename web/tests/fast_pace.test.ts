import { afterEach, expect, it, vi } from "vitest";
import type { Library } from "../src/library/library";
import { counts, noteStepMs } from "../src/stats";
import { INTERFACE } from "./fake_library";

const ADDRESS = 64;
const [FIRST, SECOND] = ["https://example.org/first/", "https://example.org/second/"];
/** Of a step's measurements, whose end is told. */
const TIMES = 16;

let live: readonly Library[] = [];
vi.mock("../src/speculative/drafter", () => ({
  tryDrafter: async (libraries: readonly Library[]) => {
    live = libraries;
    return true;
  },
}));
const asked = vi.hoisted(() => [] as string[]); // where a time was to be kept
vi.mock("../src/choose/place", async (original) => ({
  ...(await original<typeof import("../src/choose/place")>()),
  keptPace: async (url: string) => void asked.push(url),
}));
afterEach(() => vi.unstubAllGlobals());

function exportsOfLibrary(): Record<string, unknown> {
  const memory = { buffer: new ArrayBuffer(4096) };
  new Uint8Array(memory.buffer).set(new TextEncoder().encode(`${JSON.stringify(INTERFACE)}\0`), ADDRESS);
  const names = "TVMFFIFunctionCall TVMFFIObjectIncRef TVMFFIObjectDecRef TVMWasmAllocSpace";
  const driver = "tensor buffer use_count state length version room step_bytes step wrote";
  const called = [...names.split(" "), ...driver.split(" ").map((name) => `gemma4_driver_${name}`)];
  return {
    ...Object.fromEntries(called.map((name) => [name, () => 0])),
    memory,
    gemma4_driver_interface: () => ADDRESS,
  };
}

it("a model's times are not kept for the one that is loaded after it", async () => {
  vi.stubGlobal("navigator", { gpu: { requestAdapter: async () => null } });
  vi.stubGlobal("WebAssembly", {
    ...WebAssembly,
    Instance: WebAssembly.Instance,
    instantiate: async () => ({ instance: { exports: exportsOfLibrary() } }),
  });
  const { placeTable, stats, useDrafter } = await import("../src/fast");
  const load = async () => {
    const made = await WebAssembly.instantiate(new ArrayBuffer(8), { env: { TVMFFIWasmSafeCall: () => 0 } });
    (made.instance.exports["TVMFFIFunctionCall"] as (...args: number[]) => number)(1, 0, 0, 0);
    await useDrafter(FIRST);
    live[0]!.device = { adapter: {} } as unknown as Library["device"];
  };
  const place = async (url: string) => placeTable(url, { place: "device", needs: { neededBytes: 1, savedBytes: 1 } });
  await place(FIRST);
  await load();
  noteStepMs(2, TIMES);
  counts.aloneMs = 3;
  expect(asked).toEqual([FIRST]);
  await place(SECOND);
  noteStepMs(2, 2 * TIMES); // the first one's last steps, before it goes
  expect(asked).toEqual([FIRST]);
  await load();
  expect(stats()).toMatchObject({ stepMs: 0, aloneMs: 0 });
  noteStepMs(40, TIMES);
  expect(stats().stepMs).toBe(40);
});
