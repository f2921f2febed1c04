import { beforeEach, describe, expect, it } from "vitest";
import type { Group } from "../../src/gpu/bind_groups";
import { BufferState } from "../../src/gpu/buffers";
import { Stream } from "../../src/gpu/stream";
import { type Asked, fakeBuffer, fakeNative } from "../fake_device";

let asked: Asked;
let stream: Stream;
beforeEach(() => {
  asked = fakeNative();
  stream = new Stream(() => asked.native);
});

const pipeline = { label: "p" } as GPUComputePipeline;
function launch(label: string, storage: BufferState[], writes: boolean[] = storage.map(() => false), x = 1) {
  const group = { group: { label }, storage, writes } as unknown as Group;
  stream.append({ kind: "launch", pipeline, group, x, y: 2, z: 3 });
}

describe("the command stream", () => {
  it("takes one pass and one submission for many launches, and sets a pipeline once", () => {
    const state = new BufferState(fakeBuffer());
    launch("a", [state]);
    launch("b", [state]);
    stream.flush();
    expect(asked.calls).toEqual([
      "pass",
      "pipeline p",
      "group a",
      "dispatch 1 2 3",
      "group b",
      "dispatch 1 2 3",
      "end",
      "finish",
      "submit 1",
    ]);
  });

  it("writes what the host wrote before the launch that reads it, and no sooner", () => {
    const [small, other] = [new BufferState(fakeBuffer(4)), new BufferState(fakeBuffer(4))];
    stream.hold(small, new Uint8Array(4));
    launch("a", [other]);
    expect(asked.calls.filter((call) => call.startsWith("write"))).toEqual([]);
    launch("b", [small]);
    expect(asked.calls).toContain(`write ${small.buffer.label} 0`);
    expect(asked.calls).not.toContain("submit 1");
  });

  it("submits the launches that read the old content before it writes a new one", () => {
    const state = new BufferState(fakeBuffer(4));
    stream.hold(state, Uint8Array.of(1, 0, 0, 0));
    launch("a", [state]);
    stream.hold(state, Uint8Array.of(2, 0, 0, 0));
    launch("b", [state]);
    stream.flush();
    const order = asked.calls.filter((call) => /^(write|submit|group)/.test(call));
    const write = `write ${state.buffer.label} 0`;
    expect(order).toEqual([write, "group a", "submit 1", write, "group b", "submit 1"]);
  });

  it("submits a tower layer by layer, however few its launches are", () => {
    const state = new BufferState(fakeBuffer());
    const submissions = () => asked.calls.filter((call) => call === "submit 1").length;
    for (let layer = 1; layer <= 5; layer++) {
      launch("attention", [state], [true], 1000);
      stream.submitted();
      expect(submissions()).toBe(layer - 1);
      launch("mlp", [state], [true], 2000);
      stream.submitted();
      expect(submissions()).toBe(layer);
    }
  });

  it("drops the write to a buffer that nobody uses", () => {
    const state = new BufferState(fakeBuffer(4));
    stream.hold(state, new Uint8Array(4));
    stream.forget(state);
    launch("a", [state]);
    expect(asked.calls.some((call) => call.startsWith("write"))).toBe(false);
  });

  it("forgets the content of a buffer that a kernel writes", () => {
    const state = new BufferState(fakeBuffer(4));
    state.content = Uint8Array.of(7, 0, 0, 0);
    launch("a", [state], [true]);
    expect(state.content).toBeUndefined();
  });

  it("ends the pass for a copy and submits by itself when the caller waits for something else", async () => {
    const [a, b] = [new BufferState(fakeBuffer()), new BufferState(fakeBuffer())];
    launch("x", [a]);
    stream.append({ kind: "copy", source: a, sourceOffset: 0, target: b, targetOffset: 0, bytes: 4 });
    launch("y", [b]);
    await Promise.resolve();
    expect(asked.calls.filter((call) => /^(pass|end|copy|submit)/.test(call))).toEqual([
      "pass",
      "end",
      `copy ${a.buffer.label} ${b.buffer.label}`,
      "pass",
      "end",
      "submit 1",
    ]);
  });
});
