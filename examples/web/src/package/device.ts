// Asks the browser for its graphics device and its storage.
import { isMobileAgent, traitsOf } from "gemma4-web/choose";
import { waysToWebGpu } from "./browsers";
import type { Device } from "./requirements";
import { UserError } from "./user_error";
import { GIB } from "./units";

/** Why there is no WebGPU, and the ways to it: shown as a page of its own. */
export class NoWebGpu extends UserError {
  constructor(
    message: string,
    readonly ways: string[],
  ) {
    super(message, ways[0]!);
  }
}

interface Fallback {
  isFallbackAdapter?: boolean;
}

/** `isDriven`: whether gemma4-web will be between the client and the device. */
export async function findDevice(isDriven: boolean): Promise<Device> {
  const adapter = await findAdapter();
  // Browsers have had `info` for less time than WebGPU, and told of software elsewhere before.
  const info: Partial<GPUAdapterInfo> & Fallback = adapter.info ?? {};
  const { description, vendor, architecture } = info;
  const isSoftware = info.isFallbackAdapter ?? (adapter as Fallback).isFallbackAdapter ?? false;
  return {
    ...traitsOf(adapter, navigator.gpu.wgslLanguageFeatures, isDriven),
    name: description || [vendor, architecture].filter(Boolean).join(" ") || "this graphics device",
    isSoftware,
    memoryBytes: ((navigator as { deviceMemory?: number }).deviceMemory ?? 0) * GIB,
    freeStorageBytes: await freeStorage(),
    isMobile: isMobileAgent(navigator.userAgent, navigator.maxTouchPoints),
  };
}

export async function freeStorage(): Promise<number | undefined> {
  const { quota, usage } = (await navigator.storage?.estimate?.().catch(() => undefined)) ?? {};
  return quota === undefined ? undefined : Math.max(0, quota - (usage ?? 0));
}

/** The graphics device; throws NoWebGpu without one. */
export async function findAdapter(): Promise<GPUAdapter> {
  if (!isSecureContext) {
    throw new NoWebGpu("Browsers offer WebGPU only to pages from https or localhost.", [
      "Open this page through https, or as http://localhost.",
      "On the same network: forward the port (ssh -L 8000:localhost:8000), or put a TLS proxy in front.",
    ]);
  }
  if (!navigator.gpu) {
    throw new NoWebGpu("This browser has no WebGPU.", ways(false));
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new NoWebGpu("WebGPU found no graphics device.", ways(true));
  return adapter;
}

function ways(hasApi: boolean): string[] {
  return waysToWebGpu(navigator.userAgent, hasApi, navigator.maxTouchPoints);
}
