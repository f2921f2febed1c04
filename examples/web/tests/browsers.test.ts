import { describe, expect, it } from "vitest";
import TROUBLESHOOTING from "../../../docs/troubleshooting.md?raw";
import WEB from "../../../docs/web.md?raw";
import { LINUX_FLAGS, waysToWebGpu } from "../src/package/browsers";

const KHTML = "AppleWebKit/537.36 (KHTML, like Gecko)";
const AGENTS = {
  linux: `Mozilla/5.0 (X11; Linux x86_64) ${KHTML} Chrome/156.0.0.0 Safari/537.36`,
  chromeos: `Mozilla/5.0 (X11; CrOS x86_64 14541.0.0) ${KHTML} Chrome/156.0.0.0 Safari/537.36`,
  android: `Mozilla/5.0 (Linux; Android 10; K) ${KHTML} Chrome/156.0.0.0 Mobile Safari/537.36`,
  windows: `Mozilla/5.0 (Windows NT 10.0; Win64; x64) ${KHTML} Chrome/156.0.0.0 Safari/537.36 Edg/156.0.0.0`,
  firefoxLinux: "Mozilla/5.0 (X11; Linux x86_64; rv:150.0) Gecko/20100101 Firefox/150.0",
  firefoxWindows: "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:140.0) Gecko/20100101 Firefox/140.0",
  firefoxAndroid: "Mozilla/5.0 (Android 14; Mobile; rv:150.0) Gecko/150.0 Firefox/150.0",
  safari:
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Safari/605.1.15",
  iphone:
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) CriOS/150.0 Mobile/15E148 Safari/604.1",
};

describe("what helps without a graphics device", () => {
  it.each([true, false])("begins with Chromium's flags on Linux (API there: %s)", (hasApi) => {
    const [first] = waysToWebGpu(AGENTS.linux, hasApi);
    expect(first).toContain(LINUX_FLAGS);
    expect(first).toContain("--enable-unsafe-webgpu");
  });

  it.each(Object.entries(AGENTS).filter(([name]) => name !== "linux"))(
    "names no flags of Linux elsewhere: %s",
    (_, agent) => {
      for (const hasApi of [true, false]) {
        const ways = waysToWebGpu(agent, hasApi).join(" ");
        expect(ways).not.toContain("--enable-unsafe-webgpu");
        expect(ways).not.toContain("--ozone");
        expect(ways).not.toBe("");
      }
    },
  );

  it.each([
    [AGENTS.firefoxLinux, /^Firefox on Linux/],
    [AGENTS.firefoxWindows, /^Firefox 141/],
    [AGENTS.firefoxAndroid, /^Firefox on Android/],
    [AGENTS.safari, /^Safari 26/],
    [AGENTS.iphone, /^iOS and iPadOS 26/],
    [AGENTS.android, /^Chrome or Edge/],
    [AGENTS.chromeos, /^Chrome or Edge/],
  ])("begins with the browser at hand: %s", (agent, words) => expect(waysToWebGpu(agent, false)[0]).toMatch(words));

  it("takes an iPad for what it is", () => expect(waysToWebGpu(AGENTS.safari, false, 5)[0]).toMatch(/^iOS and iPadOS/));

  it("is told in the documentation with the same flags", () => {
    for (const text of [TROUBLESHOOTING, WEB]) expect(text).toContain(LINUX_FLAGS);
  });
});
