// Held against the browser's own.
import { expect, it } from "vitest";
import { sha256 } from "../src/download/hash";
import { Sha256Stream } from "../src/download/sha256_stream";

/** Bytes of a simple generator, so that each run has the same. */
function bytes(count: number, seed: number): Uint8Array<ArrayBuffer> {
  let x = seed;
  return Uint8Array.from({ length: count }, () => {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    return x >>> 24;
  });
}

function streamed(data: Uint8Array, sizes: number[]): string {
  const hash = new Sha256Stream();
  for (let at = 0, i = 0; at < data.length; i++) {
    const size = sizes[i % sizes.length]!;
    hash.update(data.subarray(at, at + size));
    at += size;
  }
  return hash.digest();
}

it("is SHA-256, whatever the length", async () => {
  for (let length = 0; length < 200; length++) {
    const data = bytes(length, length);
    expect(streamed(data, [1000])).toBe(await sha256(data));
  }
});

it("does not depend on how the bytes come", async () => {
  const data = bytes(5000, 7);
  const whole = await sha256(data);
  for (const sizes of [[1], [63], [64], [65], [3, 200, 61], [0, 1, 128]]) {
    expect(streamed(data, sizes)).toBe(whole);
  }
});
