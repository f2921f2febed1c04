import type { Profile, Stats } from "gemma4-web/fast";
import { describe, expect, it } from "vitest";
import { rowsOf, textOf, titleOf, whyNot } from "../src/view/profile";

const gemv = { kernel: "gemv", operator: "linear", launches: 70, microseconds: 6000, share: 0.8, bytes: 120_000_000 };
const norm = { kernel: "rms_norm", operator: "", launches: 141, microseconds: 1500, share: 0.2 };
const token = { step: "decode", tokens: 1, wallMicroseconds: 9_250, kernels: [gemv, norm] } as const;
const prompt = { ...token, step: "prefill", tokens: 1024, wallMicroseconds: 1_250_000 } as const;

describe("times by kernel", () => {
  it("have the step beside the sum of its kernels as a title", () => {
    expect(titleOf(token)).toBe("A token in 9.250 ms; its 211 launches take 7.500 ms");
    expect(titleOf(prompt)).toBe(
      "A prompt of 1,024 tokens, with its first token after 1250.000 ms; its 211 launches take 7.500 ms",
    );
  });

  it("are rows with the speed at which weights are read, where it is known", () => {
    expect(rowsOf(token)).toEqual([
      ["gemv", "linear", "70", "6.000", "80.0 %", "20.00"],
      ["rms_norm", "-", "141", "1.500", "20.0 %", "-"],
    ]);
    expect(rowsOf({ ...token, kernels: [{ ...gemv, microseconds: 0 }] })[0]!.at(-1)).toBe("-");
  });

  it("are a text in columns, with the device and whose clock it was", () => {
    const device = { vendor: "", architecture: "", description: "" };
    const profile: Profile = { clock: "browser", device, steps: [token] };
    const [model, named, , title, head, first, second] = textOf(profile, ["tiny, library int8"]).split("\n");
    expect([model, title]).toEqual(["tiny, library int8", titleOf(token)]);
    expect(named).toMatch(/^a device without a name; kernels by the browser's clock/);
    expect([head, first, second]).toEqual([
      "kernel    operator  launches     ms   share   GB/s",
      "gemv      linear          70  6.000  80.0 %  20.00",
      "rms_norm  -              141  1.500  20.0 %      -",
    ]);
  });
});

describe("measuring", () => {
  const stats = { enabled: true } as Stats;
  it.each([
    [undefined, false, /No model/],
    [{ ...stats, enabled: false }, false, /fast decoding/],
    [stats, true, /written/],
    [stats, false, /^$/],
  ])("of %o while a reply is written: %s", (found, isWriting, words) => {
    expect(whyNot(found, isWriting)).toMatch(words);
  });
});
