import { describe, expect, it } from "vitest";
import { parseKnownAnswers } from "../../src/selftest/known_answer_format";
import { KnownAnswerTest, type TestedDevice } from "../../src/selftest/known_answers";
import { samplePositions } from "../../src/selftest/known_inputs";

const ADAPTER = { vendor: "maker", architecture: "arch", device: "", description: "" };
const PIPELINE = {} as GPUComputePipeline;
const LAYOUT = {} as GPUBindGroupLayout;

function base64(elements: Float32Array | Int32Array): string {
  return btoa(String.fromCharCode(...new Uint8Array(elements.buffer, elements.byteOffset, elements.byteLength)));
}

/** A kernel `double` of y = 2 x, on 100 numbers of which 64 are compared. */
function metadata(
  changes: { grid?: number[]; count?: number; expected?: string; kernels?: string[]; top?: object } = {},
): string {
  const count = changes.count ?? 100;
  const x = Float32Array.from({ length: 100 }, (_, i) => i);
  const expected = Float32Array.from(samplePositions(0, count), (position) => 2 * position);
  const kernels = changes.kernels ?? ["double"];
  return JSON.stringify({
    known_answers: {
      version: 1,
      digest: "d",
      limits: "subgroups",
      subgroup_size: 32,
      cases: [
        {
          title: "doubling",
          buffers: [
            { dtype: "float32", count: 100, data: base64(x) },
            {
              dtype: "float32",
              count: 100,
              seed: 1,
              spreads: [
                { bits: 11, offset: -1024, step: 0.001953125 },
                { bits: 0, offset: 1, step: 0.5 },
              ],
            },
          ],
          launches: kernels.map((kernel) => ({
            kernel,
            grid: changes.grid ?? [7, 1, 1],
            scalars: [100],
            buffers: [0, 1],
          })),
          results: [
            {
              buffer: 1,
              name: "y",
              first: 0,
              count,
              expected: changes.expected ?? base64(expected),
              absolute: 1e-3,
              relative: 0,
            },
          ],
        },
      ],
      ...changes.top,
    },
  });
}

/** A device whose kernel is a function of its buffers' bytes and of the uniform's words. */
class FakeDevice {
  live = 0;
  made = 0;
  dispatched: number[][] = [];
  errors: (GPUError | null)[] = [];
  scopes = 0;
  limits = { maxStorageBufferBindingSize: 1 << 27 } as GPUSupportedLimits;

  constructor(private readonly kernel: (buffers: ArrayBuffer[]) => void) {}

  queue = {
    writeBuffer: (buffer: unknown, _: number, data: Uint8Array | Uint32Array) =>
      new Uint8Array((buffer as { bytes: ArrayBuffer }).bytes).set(
        new Uint8Array(data.buffer, data.byteOffset, data.byteLength),
      ),
    submit: () => undefined,
  };

  createBuffer({ size }: { size: number }): unknown {
    this.live += 1;
    this.made += 1;
    const bytes = new ArrayBuffer(size);
    return { bytes, destroy: () => (this.live -= 1), mapAsync: async () => undefined, getMappedRange: () => bytes };
  }

  createBindGroup({ entries }: { entries: { resource: { buffer: { bytes: ArrayBuffer } } }[] }): unknown {
    return entries.map(({ resource }) => resource.buffer.bytes);
  }

  createCommandEncoder(): unknown {
    let bound: ArrayBuffer[] = [];
    return {
      beginComputePass: () => ({
        setPipeline: () => undefined,
        setBindGroup: (_: number, group: ArrayBuffer[]) => (bound = group),
        dispatchWorkgroups: (...grid: number[]) => {
          this.dispatched.push([...grid, ...new Uint32Array(bound.at(-1)!)]);
          this.kernel(bound);
        },
        end: () => undefined,
      }),
      copyBufferToBuffer: (
        from: { bytes: ArrayBuffer },
        begin: number,
        to: { bytes: ArrayBuffer },
        at: number,
        size: number,
      ) => new Uint8Array(to.bytes).set(new Uint8Array(from.bytes, begin, size), at),
      finish: () => undefined,
    };
  }

  pushErrorScope(): void {
    this.scopes += 1;
  }

  async popErrorScope(): Promise<GPUError | null> {
    this.scopes -= 1;
    return this.errors.pop() ?? null;
  }

  get device(): TestedDevice {
    return this as unknown as TestedDevice;
  }
}

const doubling = ([x, y]: ArrayBuffer[]) => new Float32Array(y!).set(new Float32Array(x!).map((value) => 2 * value));

function testOf(fake: FakeDevice, text: string, adapter: object = {}): KnownAnswerTest {
  return new KnownAnswerTest(fake.device, parseKnownAnswers(text)!, { ...ADAPTER, ...adapter });
}

describe("a known answer", () => {
  it("passes on a device that computes it, and frees every buffer", async () => {
    const fake = new FakeDevice(doubling);
    const test = testOf(fake, metadata());
    expect(test.passed).toBe(false);
    expect(await test.check("double", PIPELINE, LAYOUT)).toBeUndefined();
    expect(test.passed).toBe(true);
    expect(fake.dispatched).toEqual([[7, 1, 1, 100, 7]]);
    expect([fake.live, fake.made, fake.scopes]).toEqual([0, 4, 0]);
  });

  it("is kept once all cases passed, and forgotten when one did not", async () => {
    const kept: string[] = [];
    const keeper = { add: async () => void kept.push("add"), forget: async () => void kept.push("forget") };
    const answers = parseKnownAnswers(metadata())!;
    answers.cases.push({ ...answers.cases[0]!, launches: [{ ...answers.cases[0]!.launches[0]!, kernel: "second" }] });
    const test = new KnownAnswerTest(new FakeDevice(doubling).device, answers, ADAPTER, keeper);
    await test.check("double", PIPELINE, LAYOUT);
    expect(kept).toEqual([]);
    await test.check("second", PIPELINE, LAYOUT);
    await test.check("second", PIPELINE, LAYOUT);
    expect(kept).toEqual(["add"]);
    const wrong = new KnownAnswerTest(new FakeDevice(() => undefined).device, answers, ADAPTER, keeper);
    await wrong.check("double", PIPELINE, LAYOUT);
    expect(kept).toEqual(["add", "forget"]);
  });

  it("ignores kernels without one, and runs once", async () => {
    const fake = new FakeDevice(doubling);
    const test = testOf(fake, metadata());
    expect(await test.check("other", PIPELINE, LAYOUT)).toBeUndefined();
    expect(fake.made).toBe(0);
    await test.check("double", PIPELINE, LAYOUT);
    await test.check("double", PIPELINE, LAYOUT);
    expect(fake.dispatched).toHaveLength(1);
  });

  it("waits for all kernels of its case", async () => {
    const fake = new FakeDevice(doubling);
    const test = testOf(fake, metadata({ kernels: ["survey", "draw"] }));
    expect(await test.check("draw", PIPELINE, LAYOUT)).toBeUndefined();
    expect(fake.dispatched).toHaveLength(0);
    expect(await test.check("survey", PIPELINE, LAYOUT)).toBeUndefined();
    expect([fake.dispatched.length, test.passed]).toEqual([2, true]);
  });

  it("spreads a long grid along z as the client does", async () => {
    const fake = new FakeDevice(doubling);
    await testOf(fake, metadata({ grid: [200_001, 2, 1] })).check("double", PIPELINE, LAYOUT);
    expect(fake.dispatched).toEqual([[50_001, 2, 4, 100, 200_001]]);
  });

  it.each([
    ["does nothing", () => undefined],
    ["gives no numbers", ([, y]: ArrayBuffer[]) => new Float32Array(y!).fill(NaN)],
    [
      "leaves the end out",
      ([x, y]: ArrayBuffer[]) => new Float32Array(y!).set(new Float32Array(x!).slice(0, 90).map((value) => 2 * value)),
    ],
  ])("finds a kernel that %s", async (_, kernel) => {
    const fake = new FakeDevice(kernel);
    const test = testOf(fake, metadata());
    const problem = await test.check("double", PIPELINE, LAYOUT);
    expect(problem?.kernel).toBe("double");
    expect(problem?.message).toMatch(
      /^maker arch computes wrong results with this package \(doubling, kernel double\): \d+ of 64 samples of `y` are off; element \d+ has to be \d+, and is /,
    );
    expect(problem?.message.split("\n")[1]).toContain("Update the graphics driver and the browser.");
    expect([test.passed, fake.live]).toEqual([false, 0]);
  });

  it("names subgroups that are too small", async () => {
    const problem = await testOf(new FakeDevice(() => undefined), metadata(), { subgroupMinSize: 8 }).check(
      "double",
      PIPELINE,
      LAYOUT,
    );
    expect(problem?.message).toContain("here they may have 8: use another library of the package");
  });

  it.each([0, 1])("says nothing about a device that cannot run it (scope %i)", async (scope) => {
    const fake = new FakeDevice(() => undefined);
    fake.errors = [null, null];
    fake.errors[scope] = { message: "no" } as GPUError;
    const test = testOf(fake, metadata());
    expect(await test.check("double", PIPELINE, LAYOUT)).toBeUndefined();
    expect([test.passed, fake.live, fake.scopes]).toEqual([false, 0, 0]);
  });

  it("says nothing about a device that throws or is too small", async () => {
    const fake = new FakeDevice(() => {
      throw new Error("lost");
    });
    const test = testOf(fake, metadata());
    expect(await test.check("double", PIPELINE, LAYOUT)).toBeUndefined();
    expect([test.passed, fake.live, fake.scopes]).toEqual([false, 0, 0]);
    const small = new FakeDevice(doubling);
    small.limits = { maxStorageBufferBindingSize: 64 } as GPUSupportedLimits;
    expect(await testOf(small, metadata()).check("double", PIPELINE, LAYOUT)).toBeUndefined();
    expect(small.made).toBe(0);
  });
});

describe("metadata", () => {
  it("without known answers, or with those of another version, has none", () => {
    expect(parseKnownAnswers("{}")).toBeUndefined();
    expect(parseKnownAnswers(metadata({ top: { version: 2 } }))).toBeUndefined();
  });

  it.each([
    ["a digest that is no text", { top: { digest: 1 } }, "digest has to be text"],
    ["no cases", { top: { cases: {} } }, "cases has to be a list"],
    ["a grid of nothing", { grid: [0, 1, 1] }, "grid has to be an integer from 1"],
    ["a result beyond its buffer", { count: 101 }, "count has to be an integer from 1 to 100"],
    ["too few samples", { expected: base64(new Float32Array(3)) }, "expected has to be 64 elements"],
  ])("with %s is refused", (_, changes, message) => {
    expect(() => parseKnownAnswers(metadata(changes as Parameters<typeof metadata>[0]))).toThrow(message);
  });
});
