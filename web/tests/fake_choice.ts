// A package with several libraries, and devices that are made up by what they offer, compute and take.
import type { Surroundings } from "../src/choose/choose";
import { hexDigest } from "../src/kept";
import { samplePositions } from "../src/selftest/known_inputs";

const PACKED = "packed_4x8_integer_dot_product";

interface Made {
  name: string;
  features?: string[];
  language_features?: string[];
  subgroup_size?: number;
  activations?: string;
  float16?: string | null;
  target?: string;
  more?: object;
}

const F16 = ["shader-f16"];
const SUBGROUPS = [...F16, "subgroups"];

/** What gemma4-compile writes for a browser, in its order. */
export const SET: Made[] = [
  { name: "default", float16: "words" },
  { name: "f16", features: F16 },
  { name: "int8", features: F16, language_features: [PACKED], activations: "int8" },
  { name: "subgroups", features: SUBGROUPS, subgroup_size: 32 },
  { name: "subgroups-16", features: SUBGROUPS, subgroup_size: 16 },
  { name: "subgroups-8", features: SUBGROUPS, subgroup_size: 8 },
  { name: "subgroups-4", features: SUBGROUPS, subgroup_size: 4 },
  { name: "h200", features: SUBGROUPS, language_features: [PACKED], subgroup_size: 32, activations: "int8" },
  {
    name: "h200-f32",
    features: ["subgroups"],
    language_features: [PACKED],
    subgroup_size: 32,
    activations: "int8",
    float16: "words",
  },
];

const fileOf = (name: string) => (name === "default" ? "model.wasm" : `model-${name}.wasm`);

function base64(elements: Float32Array): string {
  return btoa(String.fromCharCode(...new Uint8Array(elements.buffer)));
}

/** A case of a kernel that doubles 64 numbers. */
function doubling(title: string, kernel: string): object {
  const x = Float32Array.from({ length: 64 }, (_, i) => i);
  const expected = Float32Array.from(samplePositions(0, 64), (position) => 2 * position);
  return {
    title,
    buffers: [
      { dtype: "float32", count: 64, data: base64(x) },
      { dtype: "float32", count: 64 },
    ],
    launches: [{ kernel, grid: [1, 1, 1], scalars: [], buffers: [0, 1] }],
    results: [{ buffer: 1, name: "y", first: 0, count: 64, expected: base64(expected), absolute: 0, relative: 0 }],
  };
}

const KERNELS = { decode: "matmul of one token", attend: "attention of one token", prompt: "matmul of a prompt" };

/** A library's file as TVM writes one: texts with their lengths, among other bytes. */
export function libraryFile(name: string, subgroupSize = 0): Uint8Array<ArrayBuffer> {
  const known_answers = {
    version: 1,
    digest: name,
    limits: name,
    subgroup_size: subgroupSize,
    cases: Object.entries(KERNELS).map(([kernel, title]) => doubling(title, `${kernel}_kernel`)),
  };
  const metadata = JSON.stringify({ artifact: { name } }).replace('"artifact":{', '"artifact": {').slice(0, -1);
  const whole = `${metadata}, "known_answers": ${JSON.stringify(known_answers)}}`;
  const texts = ["noise decode_kernel", whole];
  for (const kernel of Object.keys(KERNELS)) {
    const entry = `${kernel}_kernel`;
    texts.push(
      entry,
      `// of ${name}\n@group(0) @binding(0) var<storage, read> x : array<f32>;
@group(0) @binding(1) var<storage, read_write> y : array<f32>;
@group(0) @binding(2) var<uniform> podArgs : PODArgs;
@compute @workgroup_size(64, 1, 1)
fn ${entry}(@builtin(workgroup_id) at : vec3<u32>) {}`,
    );
  }
  const parts = texts.flatMap((text) => {
    const bytes = new TextEncoder().encode(text);
    const length = new Uint8Array(8);
    new DataView(length.buffer).setBigUint64(0, BigInt(bytes.length), true);
    return [length, bytes];
  });
  const size = parts.reduce((sum, part) => sum + part.length, 3);
  const file = new Uint8Array(size);
  let at = 3;
  for (const part of parts) {
    file.set(part, at);
    at += part.length;
  }
  return file;
}

/** A package on a server: `asked` are the files that were fetched. */
export class FakePackage {
  readonly asked: string[] = [];
  readonly files = new Map<string, Uint8Array<ArrayBuffer>>();
  isReachable = true;

  private constructor() {}

  static async of(libraries: Made[] = SET, change: (provenance: Record<string, unknown>) => void = () => undefined) {
    const made = new FakePackage();
    const files: Record<string, object> = {};
    for (const { name, subgroup_size } of libraries) {
      const data = libraryFile(name, subgroup_size);
      made.files.set(fileOf(name), data);
      files[fileOf(name)] = { nbytes: data.length, sha256: await hexDigest(data) };
    }
    const provenance: Record<string, unknown> = {
      schema: "gemma4_compile.package",
      schema_version: 1,
      library: "model.wasm",
      build: { target: "webgpu", limits: "default", recipe: "q4f16", requirements: {} },
      files,
      libraries: libraries.map(({ name, activations = "float", float16 = "native", target = "webgpu", ...needs }) => ({
        file: fileOf(name),
        name,
        target,
        limits: name,
        activations,
        float16,
        requirements: {
          features: [],
          language_features: [],
          subgroup_size: 0,
          max_binding_bytes: 1 << 27,
          max_threads_per_block: 256,
          max_shared_memory_bytes: 32768,
          max_storage_buffers: 10,
          ...needs,
          ...needs.more,
        },
      })),
    };
    change(provenance);
    made.files.set("provenance.json", new TextEncoder().encode(JSON.stringify(provenance)));
    return made;
  }

  readonly fetch = async (url: string): Promise<Response> => {
    const name = url.split("/").at(-1)!;
    if (!this.isReachable) throw new TypeError("no network");
    this.asked.push(name);
    const data = this.files.get(name);
    return data ? new Response(data) : new Response(undefined, { status: 404 });
  };
}

export interface FakeHardware {
  features?: string[];
  languageFeatures?: string[];
  limits?: Record<string, number>;
  /** Smallest and largest subgroup; undefined: the browser does not say. */
  subgroups?: [number, number];
  info?: object;
  /** Microseconds of a launch, by the name of the library; of several the next one for each submission. Its check takes two. */
  speed?: Record<string, number | number[]>;
  /** Kernels that compute wrong, by library. */
  wrong?: Record<string, string[]>;
  /** Milliseconds that a pipeline takes to be made. */
  compileMs?: number;
  /** What the browser says where a library's pipelines are not made. */
  refuses?: Record<string, string>;
  /** The library with which the device is lost. */
  loses?: string;
  /** Whether there is no room for what is timed. */
  isFull?: boolean;
  /** The library whose pipelines never get ready. */
  hangs?: string;
  /** Whether the device opens. */
  opens?: boolean;
  hasClock?: boolean;
  /** Of the processor. */
  cores?: number;
}

const LIMITS = {
  maxBufferSize: 2 ** 31,
  maxStorageBufferBindingSize: 2 ** 30,
  maxComputeWorkgroupStorageSize: 32768,
  maxStorageBuffersPerShaderStage: 10,
  maxComputeInvocationsPerWorkgroup: 1024,
};

interface Buffer_ {
  bytes: ArrayBuffer;
}

/** The GPU of a browser with this hardware, and a clock that its work moves on. */
export class FakeBrowser {
  milliseconds = 1000;
  readonly opened: GPUDeviceDescriptor[] = [];
  live = 0;
  readonly kept = new Map<string, string>();

  constructor(readonly hardware: FakeHardware) {}

  get around(): Surroundings {
    const { kept } = this;
    const cacheOf = (name: string) => {
      const keyOf = (key: unknown) => `${name} ${String((key as { url?: string }).url ?? key)}`;
      return {
        match: async (key: unknown) => (kept.has(keyOf(key)) ? new Response(kept.get(keyOf(key))) : undefined),
        put: async (key: unknown, response: Response) => void kept.set(keyOf(key), await response.text()),
        delete: async (key: unknown) => kept.delete(keyOf(key)),
        keys: async () =>
          [...kept.keys()].filter((key) => key.startsWith(`${name} `)).map((key) => ({ url: key.split(" ")[1]! })),
      };
    };
    return {
      gpu: {
        requestAdapter: async () => this.adapter,
        wgslLanguageFeatures: new Set(this.hardware.languageFeatures ?? []),
      } as unknown as Surroundings["gpu"],
      store: {
        open: async (name: string) => cacheOf(name),
        match: async (url: string) =>
          [...kept.keys()].some((key) => key.endsWith(` ${url}`)) ? new Response() : undefined,
      } as unknown as Surroundings["store"],
      userAgent: "Fake/1",
      cores: this.hardware.cores ?? 2,
      now: () => this.milliseconds,
    };
  }

  get adapter(): GPUAdapter {
    const { features = [], limits, subgroups, info, opens = true, hasClock } = this.hardware;
    const sizes = subgroups && { subgroupMinSize: subgroups[0], subgroupMaxSize: subgroups[1] };
    return {
      features: new Set([...features, ...(hasClock ? ["timestamp-query"] : [])]),
      limits: { ...LIMITS, ...limits },
      info: { vendor: "maker", architecture: "arch", device: "", description: "", ...sizes, ...info },
      requestDevice: async (descriptor: GPUDeviceDescriptor) => {
        if (!opens) throw new Error("busy");
        this.opened.push(descriptor);
        return this.device(new Set(descriptor.requiredFeatures as Iterable<string>));
      },
    } as unknown as GPUAdapter;
  }

  private device(features: Set<string>): unknown {
    const { speed = {}, wrong = {}, compileMs = 0, hangs, refuses = {}, loses, isFull = false } = this.hardware;
    let isRun = true; // since a scope was opened
    let lose: () => void = () => undefined;
    const lost = new Promise<void>((resolve) => (lose = resolve));

    this.live += 1;
    const turns = new Map<string, number>();
    const speedOf = (library: string) => {
      const speeds = [speed[library] ?? 100].flat();
      return speeds[Math.min(turns.get(library) ?? 0, speeds.length - 1)]!;
    };
    const times = new BigUint64Array(2);
    const encoder = () => {
      let bound: ArrayBuffer[] = [];
      let run: { library: string; entry: string } | undefined;
      const spent: number[] = [];
      const copies: (() => void)[] = [];
      return {
        beginComputePass: () => ({
          setPipeline: (pipeline: NonNullable<typeof run>) => (run = pipeline),
          setBindGroup: (_: number, group: ArrayBuffer[]) => (bound = group),
          dispatchWorkgroups: () => {
            const { library, entry } = run!;
            const factor = (wrong[library] ?? []).includes(entry) ? 3 : 2;
            const [x, y] = bound;
            new Float32Array(y!).set(new Float32Array(x!).map((value) => factor * value));
            spent.push(speedOf(library));
          },
          end: () => undefined,
        }),
        copyBufferToBuffer: (from: Buffer_, begin: number, to: Buffer_, at: number, size: number) =>
          copies.push(() => new Uint8Array(to.bytes).set(new Uint8Array(from.bytes, begin, size), at)),
        resolveQuerySet: (_: unknown, __: number, ___: number, to: Buffer_) =>
          copies.push(() => new BigUint64Array(to.bytes).set(times)),
        finish: () => {
          if (run) turns.set(run.library, (turns.get(run.library) ?? 0) + 1);
          return { spent, copies };
        },
      };
    };
    return {
      features,
      lost,
      limits: { maxStorageBufferBindingSize: 2 ** 30 },
      queue: {
        writeBuffer: (buffer: Buffer_, _: number, data: Uint8Array) =>
          new Uint8Array(buffer.bytes).set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)),
        submit: (lists: { spent: number[]; copies: (() => void)[] }[]) => {
          isRun = true;
          for (const { spent, copies } of lists) {
            const microseconds = spent.reduce((sum, each) => sum + each, 0);
            times.set([0n, BigInt(1000 * microseconds)]);
            this.milliseconds += microseconds / 1000;
            for (const copy of copies) copy();
          }
        },
        onSubmittedWorkDone: async () => undefined,
      },
      createBuffer: ({ size }: { size: number }) => {
        const bytes = new ArrayBuffer(size);
        return {
          bytes,
          destroy: () => undefined,
          mapAsync: async () => undefined,
          getMappedRange: () => bytes,
          unmap: () => undefined,
        };
      },
      createBindGroupLayout: ({ entries }: { entries: { buffer: { type: string } }[] }) =>
        entries.map(({ buffer }) => buffer.type),
      createPipelineLayout: ({ bindGroupLayouts }: { bindGroupLayouts: unknown[] }) => bindGroupLayouts[0],
      createShaderModule: ({ code }: { code: string }) => ({ library: /^\/\/ of (\S+)/.exec(code)![1] }),
      createComputePipelineAsync: async ({
        layout,
        compute,
      }: {
        layout: string[];
        compute: { module: { library: string }; entryPoint: string };
      }) => {
        if (layout.join() !== "read-only-storage,storage,uniform") throw new Error(`bindings ${layout.join()}`);
        const { library } = compute.module;
        if (library === loses) lose();
        if (library === loses || refuses[library]) throw new Error(refuses[library] ?? "internal");
        if (library === hangs) await new Promise(() => undefined);
        this.milliseconds += compileMs;
        return { library, entry: compute.entryPoint };
      },
      createBindGroup: ({ entries }: { entries: { resource: { buffer: Buffer_ } }[] }) =>
        entries.map(({ resource }) => resource.buffer.bytes),
      createCommandEncoder: encoder,
      createQuerySet: () => ({ destroy: () => undefined }),
      pushErrorScope: () => (isRun = false),
      popErrorScope: async () => (isFull && !isRun ? { message: "out of memory" } : null),
      destroy: () => (this.live -= 1),
    };
  }
}
