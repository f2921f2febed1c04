// What the module knows of each GPU buffer of a device that it drives.

/** Is asked when the client's own commands touch a buffer that a record keeps. */
export interface Keeper {
  /** A launch binds the buffer, a copy reads or writes it, or the host writes it. */
  touched(state: BufferState, byHost?: boolean): void;
  /** The buffer is copied to a buffer for the host; what will be read there, if that is known without the copy. */
  read(state: BufferState, bytes: number): HostRead | undefined;
}

/** A number that the host will read. */
export interface HostRead {
  /** Known already, or once `arrival` has come. */
  value(): number;
  readonly arrival: Promise<void>;
}

/** Is called when a buffer that it uses is destroyed. */
export interface Dependent {
  bufferGone(): void;
}

/** Takes what the host writes to a buffer that stands for a larger one. */
export type Catcher = (offset: number, bytes: Uint8Array, stand: BufferState) => void;

const STATE = Symbol("gemma4-web");
type Known = GPUBuffer & { [STATE]?: BufferState };

let nextId = 1;
/** Numbers of buffers and layouts in keys. */
export const newId = (): number => nextId++;

export class BufferState {
  readonly id = newId();
  /** Written by the host from offset 0 on, and not yet handed to the queue. */
  pending: Uint8Array | undefined;
  /** What a small buffer holds, as long as only the host wrote it. */
  content: Uint8Array | undefined;
  /** Of the command stream that used it last. */
  usedIn = 0;
  /** What the host wrote last, where the device keeps that, until a command writes the buffer. */
  written: Uint8Array | undefined;
  keeper: Keeper | undefined;
  /** On a buffer for the host: what is read from it instead of what it holds. */
  hostRead: HostRead | undefined;
  /** Keys of the bind groups that name it. */
  readonly groups = new Set<string>();
  readonly dependents = new Set<Dependent>();
  /** The runtime's number of it; 0 for none. */
  handle = 0;

  constructor(
    readonly buffer: GPUBuffer,
    readonly catcher?: Catcher,
  ) {
    (buffer as Known)[STATE] = this;
  }
}

export const stateOf = (buffer: GPUBuffer): BufferState | undefined => (buffer as Known)[STATE];

/** Ids of the largest chunk. */
const MOST_NOTED_BYTES = 65_536;

/** Whether something else than the buffer takes what the host writes; if not, it may be kept to be looked at. */
export function isCaught(state: BufferState, offset: number, bytes: Uint8Array, isNoted: boolean): boolean {
  state.catcher?.(offset, bytes, state);
  if (isNoted) state.written = offset === 0 && bytes.byteLength <= MOST_NOTED_BYTES ? bytes.slice() : undefined;
  return state.catcher !== undefined;
}

/** What `writeBuffer` was given. */
export function bytesOf(data: BufferSource, offset: number, size: number | undefined): Uint8Array {
  if (ArrayBuffer.isView(data)) {
    const unit = (data as { BYTES_PER_ELEMENT?: number }).BYTES_PER_ELEMENT ?? 1;
    const begin = data.byteOffset + offset * unit;
    const count = size === undefined ? data.byteLength - offset * unit : size * unit;
    return new Uint8Array(data.buffer, begin, count);
  }
  return new Uint8Array(data as ArrayBuffer, offset, size);
}
