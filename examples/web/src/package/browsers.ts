// Which browsers have WebGPU, and what helps in the one that reads this. docs/web.md has the same list.

/** What Chromium on Linux has to be started with where it does not offer the graphics device by itself. */
export const LINUX_FLAGS =
  "--enable-unsafe-webgpu --ozone-platform=x11 --use-angle=vulkan --enable-features=Vulkan,VulkanFromANGLE";

const CHROMIUM = "Chrome or Edge 113 and newer on Windows, macOS and ChromeOS; Chrome 121 and newer on Android 12.";
const CHROMIUM_ON_LINUX =
  "Chrome on Linux: from 144 with Intel graphics of 2020 and newer (Gen 12), from 147 with NVIDIA's driver 535.183 and newer.";
const SAFARI = "Safari 26 on macOS, iOS and iPadOS.";
const FIREFOX = "Firefox 141 and newer on Windows, 145 on Macs with Apple silicon and macOS 26, 147 with older macOS.";
const EVERYWHERE = [CHROMIUM, CHROMIUM_ON_LINUX, SAFARI, FIREFOX];

type Browser = "chromium" | "firefox" | "safari" | "other";
type System = "linux" | "android" | "ios" | "macos" | "windows" | "other";

function browserOf(agent: string): Browser {
  if (/Firefox\//.test(agent)) return "firefox";
  if (/Chrom(e|ium)\//.test(agent)) return "chromium";
  return /Safari\//.test(agent) ? "safari" : "other";
}

/** `touches`: points of touch that the device knows: an iPad reports that it is a Mac. */
function systemOf(agent: string, touches: number): System {
  if (/Android/.test(agent)) return "android";
  if (/iPhone|iPad|iPod/.test(agent) || (/Macintosh/.test(agent) && touches > 1)) return "ios";
  if (/Macintosh/.test(agent)) return "macos";
  if (/Windows/.test(agent)) return "windows";
  return /Linux/.test(agent) ? "linux" : "other"; // ChromeOS reports CrOS
}

/**
 * What helps where a browser has no WebGPU (`hasApi` is false), or has it and finds no graphics device; the likeliest
 * way first. `agent` is the browser's own description.
 */
export function waysToWebGpu(agent: string, hasApi: boolean, touches = 0): string[] {
  const system = systemOf(agent, touches);
  const browser = browserOf(agent);
  const own = ofBrowser(browser, system, hasApi);
  if (!hasApi) return [...own, ...EVERYWHERE.filter((way) => !own.includes(way))];
  return [
    ...own,
    "See that hardware acceleration is on in the browser's settings, then restart the browser.",
    `Update the graphics driver${browser === "chromium" ? "; chrome://gpu shows what the browser found" : ""}.`,
    "In a virtual machine or over remote desktop there may be no device to find.",
  ];
}

function ofBrowser(browser: Browser, system: System, hasApi: boolean): string[] {
  if (system === "ios") return ["iOS and iPadOS 26 and newer have WebGPU, in every browser: update the system."];
  if (system === "linux" && browser === "chromium") {
    return [
      `Close the browser, and start it with the flags ${LINUX_FLAGS}`,
      `${CHROMIUM_ON_LINUX} Other devices need the flags, and a current Vulkan driver (vulkaninfo --summary lists it).`,
    ];
  }
  if (system === "linux" && browser === "firefox") {
    return [
      hasApi
        ? "Firefox on Linux may distrust the graphics driver: gfx.webgpu.ignore-blocklist in about:config lets it try."
        : "Firefox on Linux has WebGPU in Nightly; in ESR 153 and newer dom.webgpu.enabled in about:config turns it on.",
      CHROMIUM_ON_LINUX,
    ];
  }
  if (hasApi) return [];
  if (browser === "firefox" && system === "android")
    return ["Firefox on Android does not have WebGPU yet; Chrome 121 and newer has, on Android 12."];
  if (browser === "firefox") return [FIREFOX];
  if (browser === "safari") return [SAFARI];
  return [CHROMIUM];
}
