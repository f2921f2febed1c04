import { describe, expect, it } from "vitest";

describe("the module in a thread without WebGPU", () => {
  it("changes nothing and says why", async () => {
    const instantiate = WebAssembly.instantiate;
    const { disable, stats } = await import("../src/fast");
    expect(WebAssembly.instantiate).toBe(instantiate);
    expect(stats()).toMatchObject({ enabled: false, libraries: 0, reasons: ["there is no WebGPU in this thread"] });
    disable();
    expect(stats().reasons).toEqual(["there is no WebGPU in this thread"]);
  });

  it("is told of a choice that another thread made", async () => {
    const { noteChoice, stats } = await import("../src/fast");
    noteChoice({ name: "int8", why: "the fastest here" });
    expect(stats()).toMatchObject({ library: "int8", libraryReason: "the fastest here" });
  });

  it("gives copies of its counts", async () => {
    const { stats } = await import("../src/fast");
    stats().reasons.push("mine");
    stats().launches = 7;
    expect(stats()).toMatchObject({ launches: 0, reasons: ["there is no WebGPU in this thread"] });
  });
});
