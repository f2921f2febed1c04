import { afterEach, expect, it, vi } from "vitest";
import type { Library } from "../src/library/library";
import { Drafter } from "../src/speculative/drafter_state";
import { counts } from "../src/stats";
import { INTERFACE } from "./fake_library";

const ADDRESS = 64;
const WEIGHTS = 512;

let live: readonly Library[] = [];
vi.mock("../src/speculative/drafter", () => ({
  tryDrafter: async (libraries: readonly Library[]) => {
    live = libraries;
    return true;
  },
}));
afterEach(() => vi.unstubAllGlobals());

it("disable() lets a drafter's weights go when the library is entered again", async () => {
  const released: number[] = [];
  const memory = { buffer: new ArrayBuffer(4096) };
  new Uint8Array(memory.buffer).set(new TextEncoder().encode(`${JSON.stringify(INTERFACE)}\0`), ADDRESS);
  const known: Record<string, unknown> = {
    memory,
    gemma4_driver_interface: () => ADDRESS,
    TVMFFIObjectDecRef: (handle: number) => released.push(handle),
  };
  const names = "TVMFFIFunctionCall TVMFFIObjectIncRef TVMWasmAllocSpace";
  const driver = "tensor buffer use_count state length version room step_bytes step wrote";
  const called = [...names.split(" "), ...driver.split(" ").map((name) => `gemma4_driver_${name}`)];
  const exports = { ...Object.fromEntries(called.map((name) => [name, () => 0])), ...known };
  vi.stubGlobal("navigator", { gpu: { requestAdapter: async () => null } });
  vi.stubGlobal("WebAssembly", {
    ...WebAssembly,
    Instance: WebAssembly.Instance,
    instantiate: async () => ({ instance: { exports } }),
  });
  const { disable, stats, useDrafter } = await import("../src/fast");
  const made = await WebAssembly.instantiate(new ArrayBuffer(8), { env: { TVMFFIWasmSafeCall: () => 0 } });
  const call = made.instance.exports["TVMFFIFunctionCall"] as (...args: number[]) => number;
  call(1, 0, 0, 0); // the client enters it: from here on it is known
  await useDrafter("https://example.org/model/");
  const drafter = Drafter.of(live[0]!);
  [drafter.weights, drafter.bytes, counts.drafterBytes] = [WEIGHTS, 28, 28];
  disable();
  expect([drafter.weights, stats().drafterBytes, stats().enabled]).toEqual([0, 0, false]);
  expect(released).toEqual([]); // not while the library may be freeing something
  call(1, 0, 0, 0);
  expect(released).toEqual([WEIGHTS]);
});
