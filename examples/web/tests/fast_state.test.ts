import type { Stats } from "gemma4-web/fast";
import { describe, expect, it } from "vitest";
import type { Package } from "../src/package/package";
import { describeBeginnings, describeDrafts, describeFast, describeTable } from "../src/view/fast_state";

function statsOf(changes: Partial<Stats>): Stats {
  const ready = { enabled: true, libraries: 1, reasons: [], plainSteps: 0, replayedSteps: 0, aheadSteps: 0 };
  return { ...ready, ...changes } as unknown as Stats;
}

describe("describeFast", () => {
  it("says nothing where no model runs", () => {
    expect(describeFast(undefined, true)).toBe("");
  });

  it("tells steps that ran ahead from the others", () => {
    expect(describeFast(statsOf({ plainSteps: 2, replayedSteps: 3, aheadSteps: 1195 }), true)).toBe(
      "Active: of 1,200 decode steps 1,195 ran ahead of the client, 3 were replayed one at a time.",
    );
    expect(describeFast(statsOf({ replayedSteps: 0, aheadSteps: 7, reasons: ["sample is odd"] }), true)).toBe(
      "Active: of 7 decode steps 7 ran ahead of the client. Left to the client: sample is odd.",
    );
  });

  it("does not claim what has not happened yet", () => {
    expect(describeFast(statsOf({}), true)).toMatch(/^Ready/);
    expect(describeFast(statsOf({ plainSteps: 2 }), true)).toMatch(/^Ready/);
    expect(describeFast(statsOf({ plainSteps: 30 }), true)).toMatch(/^Not active: the client calls/);
  });

  it("gives the reasons where it is not active", () => {
    const old = statsOf({
      libraries: 0,
      plainSteps: 0,
      reasons: ["the library has no driver interface: compile the package again"],
    });
    expect(describeFast(old, true)).toBe("Not active: the library has no driver interface: compile the package again.");
    expect(describeFast(statsOf({ libraries: 0 }), true)).toBe("Not active: the model's library is not known to it.");
    expect(
      describeFast(statsOf({ enabled: false, libraries: 0, reasons: ["there is no WebGPU in this thread"] }), true),
    ).toBe("Not active: there is no WebGPU in this thread.");
  });

  it("says when the switch and the model that runs differ", () => {
    const off = statsOf({ enabled: false, libraries: 0, reasons: ["disable() was called"] });
    expect(describeFast(off, false)).toBe("Off for this model.");
    expect(describeFast(off, true)).toMatch(/^Off for this model\. The change takes effect/);
    expect(describeFast(statsOf({ aheadSteps: 5 }), false)).toMatch(/^Active: .* The change takes effect/);
  });
});

describe("describeDrafts", () => {
  const [drafted, left] = [
    { drafter: new Set(["a"]), hasDrafter: true },
    { drafter: new Set<string>(), hasDrafter: true },
  ];
  const none = { drafter: new Set<string>(), hasDrafter: false };
  const used = statsOf({ drafterBytes: 985, draftRounds: 0, draftedTokens: 0, acceptedTokens: 0 });

  it("says nothing where no model runs, and when a package has none", () => {
    expect(describeDrafts(undefined, drafted, true)).toBe("");
    expect(describeDrafts(used, none, true)).toBe("This package has no drafter.");
  });

  it("counts drafts, once there are any", () => {
    expect(describeDrafts(used, drafted, true)).toMatch(/^Ready/);
    const counted = { ...used, draftRounds: 700, draftedTokens: 2100, acceptedTokens: 1400 };
    expect(describeDrafts(counted, drafted, true)).toBe("Active: of 2,100 drafts 1,400 came true.");
  });

  it("gives the reason where it is not used", () => {
    const missing = statsOf({ drafterBytes: 0, reasons: ["sample is odd"] });
    expect(describeDrafts(missing, drafted, true)).toBe("Not active: its files did not arrive.");
    expect(describeFast(statsOf({ reasons: ["no drafter: it is odd"] }), true)).toMatch(/^Ready/);
    const failed = statsOf({ drafterBytes: 0, reasons: ["sample is odd", "no tokens are drafted: unreachable"] });
    expect(describeDrafts(failed, drafted, true)).toBe("Not active: no tokens are drafted: unreachable.");
  });

  it("says when the switch and the model that runs differ", () => {
    expect(describeDrafts(used, left, false)).toBe("Off for this model.");
    expect(describeDrafts(used, left, true)).toMatch(/^Off for this model\. The change takes effect/);
    expect(describeDrafts(used, drafted, false)).toMatch(/^Ready.* The change takes effect/);
  });
});

describe("describeTable", () => {
  const GIB = 2 ** 30;
  const table = (place: "device" | "host", wish: "auto" | "device" | "host", why = "a reason") =>
    ({ table: { place, why, savedBytes: 1.5 * GIB, wish } }) as Pick<Package, "table">;
  const onHost = statsOf({ tableBytesOnHost: 1.6 * GIB, tableReason: "it was asked for" });
  const onDevice = statsOf({ tableBytesOnHost: 0, tableReason: "the browser has no room" });

  it.each<[string, Parameters<typeof describeTable>, RegExp]>([
    ["no package", [undefined, undefined, "auto"], /^$/],
    ["no table", [onDevice, {}, "auto"], /^This package has no per-layer embeddings/],
    [
      "before a start",
      [undefined, table("host", "auto"), "auto"],
      /^In the browser's storage, .* 1\.50 GiB .*: a reason\.$/,
    ],
    ["on the host", [onHost, table("host", "auto"), "auto"], /^In the browser's storage, .*: a reason\.$/],
    [
      "on the device",
      [onDevice, table("device", "auto"), "auto"],
      /^On the graphics device, .* 1\.50 GiB: a reason\.$/,
    ],
    ["it could not be had", [onDevice, table("host", "host"), "host"], /^On the .*: the browser has no room\.$/],
    ["another wish", [onHost, table("host", "auto"), "device"], /a reason\. The change takes effect/],
    ["a wish that nothing could do", [onDevice, table("device", "host", "no files"), "host"], /: no files\.$/],
    ["a wish before a start", [undefined, table("device", "auto"), "host"], /: a reason\.$/],
  ])("%s", (_, given, said) => expect(describeTable(...given)).toMatch(said));
});

describe("describeBeginnings", () => {
  const pack = { beginnings: { bytes: 2 ** 28, why: "there is room for them", wish: "auto" as const } };

  it("says what is kept, what that saved, and why no more is", () => {
    expect(describeBeginnings(undefined, undefined, "auto")).toBe("");
    expect(describeBeginnings(undefined, pack, "off")).toBe("Up to 256 MiB: there is room for them.");
    const none = statsOf({ keptBytes: 0, keptTokens: 0 });
    expect(describeBeginnings(none, pack, "auto")).toBe("Up to 256 MiB: there is room for them.");
    const kept = statsOf({
      keptBytes: 2 ** 20,
      keptBytesRead: 2 ** 19,
      keptTokens: 1024,
      reasons: ["no beginnings are kept: for a test"],
    });
    expect(describeBeginnings(kept, pack, "off")).toBe(
      "Up to 256 MiB: there is room for them. Now 1.0 MiB, 512 KiB of it from an earlier visit, and 1,024 tokens were not read again. " +
        "Not more: no beginnings are kept: for a test. " +
        "The change takes effect when the model starts again: reload the page.",
    );
    expect(describeFast(kept, true)).toMatch(/^Ready/);
  });

  it("says why nothing is", () => {
    const off = { beginnings: { bytes: 0, why: "it was asked for", wish: "off" as const } };
    expect(describeBeginnings(statsOf({ keptBytes: 0 }), off, "off")).toBe("Off: it was asked for.");
  });
});
