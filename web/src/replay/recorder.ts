// Records functions of the library while it runs them for the client.
import type { Handle, Role } from "../library/abi";
import type { BufferState } from "../gpu/buffers";
import type { Device } from "../gpu/device";
import type { Call, Library } from "../library/library";
import { FunctionRecord, type Region, type Scratch } from "./recording";
import { because } from "../stats";
import type { Launch } from "../gpu/stream";

/** A recorded function with the result that it hands out. */
export interface Recorded {
  readonly record: FunctionRecord;
  /** The result as it lies in the library's memory. */
  readonly any: Int32Array;
  /** The result, and its first tensor where it is another object. */
  readonly objects: readonly Handle[];
  readonly output: BufferState;
}

const ARGUMENTS: Record<Role, number> = { decode: 3, softmax: 2, sample: 5 };

export class Recorder {
  private readonly refused = new Set<Role>();

  constructor(
    private readonly library: Library,
    private readonly device: Device,
    private readonly scratch: Scratch,
  ) {}

  canRecord(role: Role, call: Call): boolean {
    if (this.refused.has(role) || this.device.openEncoders > 0) return false;
    if (call.count === ARGUMENTS[role]) return true;
    this.refuse(role, "is called with other arguments than the module knows");
    return false;
  }

  /** Calls the library; the record, if there can be one, and a reference to the result. */
  record(
    role: Role,
    call: Call,
    regions: [BufferState | undefined, Region][],
    kept: readonly BufferState[],
  ): { status: number; recorded?: Recorded } {
    const { device, library } = this;
    const recording = { launches: [] as Launch[], isClean: true };
    device.recording = recording;
    const status = library.run(call.handle, call.args, call.count, call.result);
    device.recording = undefined;
    if (status !== 0) return { status };
    const { exports } = library;
    const value = library.value(call.result);
    const tensor = exports.gemma4_driver_tensor(value.handle);
    const output = tensor === 0 ? undefined : library.bufferOf(tensor);
    if (!recording.isClean) return this.refuse(role, "does more than launch kernels", status);
    if (!output) return this.refuse(role, "returns something that the module does not know", status);
    if (regions.some(([state]) => state === undefined))
      return this.refuse(role, "takes tensors that the module does not know", status);
    const map = new Map(regions as [BufferState, Region][]);
    if (role === "sample") map.set(output, "drawn");
    const record = FunctionRecord.make(
      device.native,
      recording.launches,
      { regions: map, kept: new Set([...kept, output]) },
      this.scratch,
    );
    if (typeof record === "string") return this.refuse(role, record, status);
    exports.TVMFFIObjectIncRef(value.handle);
    return {
      status,
      recorded: { record, any: library.copyOut(call.result, 4), objects: [...new Set([value.handle, tensor])], output },
    };
  }

  private refuse(role: Role, reason: string, status = 0): { status: number } {
    this.refused.add(role);
    because(`${this.library.found.functions[role]} ${reason}`);
    return { status };
  }
}
