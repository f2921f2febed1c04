import { describe, expect, it } from "vitest";
import { encodeWav, mixChannels } from "../src/media/wav";

describe("encodeWav", () => {
  it("is a WAV file of 16 bits and one channel", () => {
    const data = encodeWav(new Float32Array([0, 0.5, -1, 1, 2]), 16_000);
    const view = new DataView(data);
    const text = (from: number, to: number) => new TextDecoder().decode(data.slice(from, to));
    expect([text(0, 4), text(8, 16), text(36, 40)]).toEqual(["RIFF", "WAVEfmt ", "data"]);
    expect(view.getUint32(4, true)).toBe(data.byteLength - 8);
    expect([20, 22, 32, 34].map((offset) => view.getUint16(offset, true))).toEqual([1, 1, 2, 16]);
    expect([24, 28, 40].map((offset) => view.getUint32(offset, true))).toEqual([16_000, 32_000, 10]);
    expect([0, 1, 2, 3, 4].map((index) => view.getInt16(44 + 2 * index, true))).toEqual([
      0, 16_384, -32_768, 32_767, 32_767,
    ]);
  });
});

describe("mixChannels", () => {
  it("is the mean", () => {
    const [left, right] = [new Float32Array([1, 0, -1]), new Float32Array([0, 0.5, -1])];
    expect([...mixChannels([left, right])]).toEqual([0.5, 0.25, -1]);
    expect(mixChannels([left])).toBe(left);
    expect(mixChannels([])).toHaveLength(0);
  });
});
