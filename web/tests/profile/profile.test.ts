import { afterEach, describe, expect, it, vi } from "vitest";
import { BufferState } from "../../src/gpu/buffers";
import type { Device } from "../../src/gpu/device";
import type { Launch } from "../../src/gpu/stream";
import type { Call, Library, Stage } from "../../src/library/library";
import { profileReply } from "../../src/profile/profile";
import { fakeBuffer, fakeNative } from "../fake_device";

const CALL: Call = { handle: 1, args: 0, count: 3, result: 0 };
const TOKENS = 12;
const KERNELS: Record<Stage, readonly string[]> = {
  prefill: ["gemm_kernel", "norm_kernel"],
  decode: ["gemv_kernel", "gemv_kernel"],
  softmax: ["softmax_kernel"],
  sample: ["sample_kernel"],
};

afterEach(() => vi.useRealTimers());

/** A client whose library launches what `KERNELS` says; `usual` counts the calls that go their usual way. */
function fakeClient() {
  const { calls, native } = fakeNative();
  const seen = { usual: 0, finished: 0, destroyed: 0 };
  const launches = (names: readonly string[]) =>
    names.map((label): Launch => {
      const group = { group: { label }, storage: [new BufferState(fakeBuffer())], writes: [true] };
      return { kind: "launch", pipeline: { label }, group, x: 1, y: 1, z: 1 } as unknown as Launch;
    });
  const device = {
    native: { ...native, onSubmittedWorkDone: async () => undefined },
    device: { features: new Set() },
    adapter: { vendor: "maker", architecture: "arch", description: "" },
    stream: { flush: () => undefined },
    kernelNames: { get: ({ label }: { label: string }) => label },
  } as unknown as Device;
  let running: Stage;
  const library = {
    isDriven: true,
    device,
    observer: undefined,
    finishDrivers: () => (seen.finished += 1),
    readMetadata: () => undefined,
    run: () => {
      device.recording?.launches.push(...launches(KERNELS[running]));
      return 0;
    },
    value: () => ({ type: 67, handle: 8 }),
    copyOut: (_: number, count: number) => Int32Array.from(count === 3 ? [3, 0, 64] : [1, 0, TOKENS, 0, 640, 0]),
  } as unknown as Library;
  const call = (stage: Stage) => {
    running = stage;
    if (library.observer?.called(stage, CALL) === undefined) seen.usual += 1;
  };
  const waits = async (isRead: boolean) => device.observer?.waited(Promise.resolve(), isRead);
  const reply = (tokens: number) => async () => {
    call("prefill");
    device.observer?.keep(() => (seen.destroyed += 1));
    await waits(false);
    for (let i = 0; i < tokens; i++) {
      await vi.advanceTimersByTimeAsync(5);
      call("decode");
      await waits(false); // nothing is drawn yet
      call("softmax");
      call("sample");
      await waits(true);
    }
  };
  return { library, device, reply, seen, calls };
}

describe("a profile", () => {
  it("has all launches of a prompt and of a token, and the time of each as it is in a chat", async () => {
    vi.useFakeTimers();
    const { library, device, reply, seen } = fakeClient();
    const found = await profileReply([library], reply(8));
    const kernels = found.steps.map(({ kernels }) =>
      kernels.map(({ kernel, launches }) => `${launches} ${kernel}`).sort(),
    );
    expect(kernels).toEqual([
      ["1 gemm", "1 norm"],
      ["1 sample", "1 softmax", "2 gemv"],
    ]);
    expect(found.steps.map(({ step, tokens }) => [step, tokens])).toEqual([
      ["prefill", TOKENS],
      ["decode", 1],
    ]);
    expect(found.steps.map(({ wallMicroseconds }) => Math.round(wallMicroseconds))).toEqual([5000, 5000]);
    expect([found.clock, found.device.vendor]).toEqual(["browser", "maker"]);
    expect([library.observer, device.observer, device.recording]).toEqual([undefined, undefined, undefined]);
    expect(seen).toEqual({ usual: 2 * 25, finished: 1, destroyed: 1 });
  });

  it("leaves behind what the step computes, and buffers that were let go until then", async () => {
    vi.useFakeTimers();
    const { library, reply, calls } = fakeClient();
    await profileReply([library], reply(8));
    const groups = calls.filter((each) => /^group|^submit/.test(each));
    const order = KERNELS.prefill.map((name) => `group ${name}`);
    // The last pass before the next step is timed is the whole step, in its order.
    const next = groups.indexOf("group gemv_kernel");
    const before = groups.slice(0, next).filter((each) => each.startsWith("group"));
    expect(before.slice(-2)).toEqual(order);
    expect(groups.filter((each) => each.startsWith("group")).slice(-4)).toEqual(
      ["gemv_kernel", "gemv_kernel", "softmax_kernel", "sample_kernel"].map((name) => `group ${name}`),
    );
  });

  it.each([0, 2])("wants a longer reply than one of %s tokens", async (tokens) => {
    vi.useFakeTimers();
    const { library, reply } = fakeClient();
    await expect(profileReply([library], reply(tokens))).rejects.toThrow(/too short/);
    await expect(profileReply([library], reply(8))).resolves.toBeDefined();
  });

  it("is not made without a model, nor twice at a time", async () => {
    await expect(profileReply([], async () => undefined)).rejects.toThrow(/no model/);
    const { library } = fakeClient();
    let end: () => void = () => undefined;
    const first = profileReply([library], () => new Promise<void>((resolve) => (end = resolve)));
    await expect(profileReply([library], async () => undefined)).rejects.toThrow(/is being made/);
    const ended = expect(first).rejects.toThrow();
    for (let i = 0; i < 3; i++) {
      end();
      await new Promise((resolve) => setTimeout(resolve));
    }
    await ended;
  });

  it("ends where the reply fails, and takes its observers along", async () => {
    vi.useFakeTimers();
    const { library, device, reply } = fakeClient();
    let asked = 0;
    const failing = async () => {
      await reply(4)();
      if (++asked === 3) throw new Error("the device was lost");
    };
    await expect(profileReply([library], failing)).rejects.toThrow("the device was lost");
    expect([library.observer, device.observer]).toEqual([undefined, undefined]);
  });
});
