// How long a pass takes on a device: by the device's own clock where it has one, else by the browser's.
import { COPY_DST, COPY_SRC, MAP_READ, QUERY_RESOLVE, READ } from "./constants";
import type { Native } from "./native";

const FEATURE = "timestamp-query";
const BYTES = 16;

export type TimedDevice = Pick<
  Native,
  "createBuffer" | "createCommandEncoder" | "createQuerySet" | "submit" | "onSubmittedWorkDone"
>;

/** The features to ask a device for: its clock, too, where the adapter offers one. */
export function withClock(asked: Iterable<GPUFeatureName>, offered: ReadonlySet<string>): GPUFeatureName[] {
  return [...new Set(asked), ...(offered.has(FEATURE) ? [FEATURE as GPUFeatureName] : [])];
}

export const hasClock = ({ features }: { readonly features: ReadonlySet<string> }): boolean => features.has(FEATURE);

interface Queries {
  readonly set: GPUQuerySet;
  readonly resolved: GPUBuffer;
  readonly staging: GPUBuffer;
}

export class PassClock {
  private readonly queries: Queries | undefined;

  /** `isOfDevice`: whether the device has the feature. */
  constructor(
    private readonly device: TimedDevice,
    isOfDevice: boolean,
    private readonly now: () => number,
  ) {
    if (!isOfDevice) return;
    this.queries = {
      set: device.createQuerySet({ type: "timestamp", count: 2 }),
      resolved: device.createBuffer({ size: BYTES, usage: QUERY_RESOLVE | COPY_SRC }),
      staging: device.createBuffer({ size: BYTES, usage: MAP_READ | COPY_DST }),
    };
  }

  /** What a timed pass is to take, in microseconds: browsers round times, their own more than the device's. */
  get aim(): number {
    return this.queries ? 4000 : 10_000;
  }

  /** Microseconds of a pass with these commands. */
  async time(encode: (pass: GPUComputePassEncoder) => void): Promise<number> {
    const { device, queries } = this;
    const empty = queries ? 0 : await this.waited(device.createCommandEncoder());
    const encoder = device.createCommandEncoder();
    const writes = queries && { querySet: queries.set, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 };
    const pass = encoder.beginComputePass(writes && { timestampWrites: writes });
    encode(pass);
    pass.end();
    if (queries) {
      encoder.resolveQuerySet(queries.set, 0, 2, queries.resolved, 0);
      encoder.copyBufferToBuffer(queries.resolved, 0, queries.staging, 0, BYTES);
    }
    const whole = await this.waited(encoder);
    // A clock that stands still says nothing.
    return (queries && (await microseconds(queries))) || Math.max(whole - empty, 1);
  }

  destroy(): void {
    for (const each of Object.values(this.queries ?? {}) as { destroy(): void }[]) each.destroy();
  }

  private async waited(encoder: GPUCommandEncoder): Promise<number> {
    const begin = this.now();
    this.device.submit([encoder.finish()]);
    await this.device.onSubmittedWorkDone();
    return (this.now() - begin) * 1000;
  }
}

async function microseconds({ staging }: Queries): Promise<number> {
  await staging.mapAsync(READ);
  const [begin, end] = new BigUint64Array(staging.getMappedRange());
  const nanoseconds = Number(end! - begin!);
  staging.unmap();
  return Math.max(nanoseconds / 1000, 0);
}
