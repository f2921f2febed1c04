// Whether this browser can run a package: asked before the download, the client asks after it.
import type { Package } from "./package";
import { UserError } from "./user_error";

// What the client requests of every device, whatever the model.
const CLIENT_LIMITS = {
  maxBufferSize: 256 << 20,
  maxStorageBufferBindingSize: 128 << 20,
  maxComputeWorkgroupStorageSize: 32 << 10,
  maxStorageBuffersPerShaderStage: 10,
} as const;

/** Returns the adapter's name, or throws a UserError that says what is missing. */
export async function checkDevice(pack: Package): Promise<string> {
  const adapter = await findAdapter();
  if (pack.usesF16 && !adapter.features.has("shader-f16")) {
    throw new UserError(
      `This package (${pack.quantization}) computes in 16-bit floats, and the graphics driver does not ` +
        "offer them (WebGPU feature shader-f16).",
      "Use a package compiled with --quant q4f32, or another browser or driver.",
    );
  }
  const needed: Record<string, number> = {
    ...CLIENT_LIMITS,
    maxStorageBufferBindingSize: Math.max(
      CLIENT_LIMITS.maxStorageBufferBindingSize,
      pack.largestTensorBytes,
    ),
  };
  for (const [name, least] of Object.entries(needed)) {
    const offered = adapter.limits[name as keyof GPUSupportedLimits] as number;
    if (offered < least) {
      throw new UserError(
        `The graphics device is too small: ${name} is ${offered}, and ${least} is needed.`,
        "Try a machine with a newer graphics device.",
      );
    }
  }
  const { description, vendor, architecture } = adapter.info;
  return description || [vendor, architecture].filter(Boolean).join(" ") || "unnamed device";
}

async function findAdapter(): Promise<GPUAdapter> {
  if (!isSecureContext) {
    throw new UserError(
      "Browsers offer WebGPU only to pages from https or localhost.",
      "Open this page through https, or as http://localhost.",
    );
  }
  if (!navigator.gpu) {
    throw new UserError(
      "This browser has no WebGPU.",
      "Use a current Chrome, Edge, Safari 26 or Firefox 141; on Linux, Chrome may need " +
        "chrome://flags/#enable-unsafe-webgpu.",
    );
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) {
    throw new UserError(
      "WebGPU found no graphics device.",
      "Update the graphics driver, and see that hardware acceleration is on in the browser's settings.",
    );
  }
  return adapter;
}
