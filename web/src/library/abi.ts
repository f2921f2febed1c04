// A library's description: exports of its wasm instance, made by gemma4-compile (targets/native/web_driver.cc).

import { MADE_FOR } from "./versions";

/** The version of these exports that the module understands. */
export const ABI = 1;

export type Handle = number;

/** C functions of the library's instance; handles are addresses of TVM FFI objects. */
export interface DriverExports {
  memory: WebAssembly.Memory;
  TVMFFIFunctionCall(handle: Handle, args: number, count: number, result: number): number;
  TVMFFIObjectIncRef(handle: Handle): number;
  TVMFFIObjectDecRef(handle: Handle): number;
  /** Every library of TVM's has it; the module needs it for a drafter alone. */
  TVMFFIFunctionGetGlobal?(name: number, out: number): number;
  TVMWasmAllocSpace(bytes: number): number;
  gemma4_driver_interface(): number;
  gemma4_driver_tensor(object: Handle): Handle;
  gemma4_driver_buffer(object: Handle): number;
  gemma4_driver_use_count(object: Handle): number;
  gemma4_driver_state(state: Handle, out: number, capacity: number): number;
  gemma4_driver_length(state: Handle): number;
  gemma4_driver_version(state: Handle): number;
  gemma4_driver_room(state: Handle): number;
  gemma4_driver_step_bytes(state: Handle): number;
  gemma4_driver_step(state: Handle, position: number, positions: number, rotary: number): number;
  gemma4_driver_wrote(state: Handle, length: number): number;
}

const CALLED: readonly (keyof DriverExports)[] = [
  "memory",
  "TVMFFIFunctionCall",
  "TVMFFIObjectIncRef",
  "TVMFFIObjectDecRef",
  "TVMWasmAllocSpace",
  "gemma4_driver_interface",
  "gemma4_driver_tensor",
  "gemma4_driver_buffer",
  "gemma4_driver_use_count",
  "gemma4_driver_state",
  "gemma4_driver_length",
  "gemma4_driver_version",
  "gemma4_driver_room",
  "gemma4_driver_step_bytes",
  "gemma4_driver_step",
  "gemma4_driver_wrote",
];

/** Functions of the library that the module takes part in. */
export type Role = "decode" | "softmax" | "sample";
/** Functions whose calls it only has to know of. */
export type Noted = "prefill" | "metadata";
const NOTED: readonly Noted[] = ["prefill", "metadata"];
const ROLES: readonly Role[] = ["decode", "softmax", "sample"];
const TYPES = ["int", "float", "raw_string", "string", "function", "tensor", "object_from"] as const;

export interface Interface {
  readonly abi: number;
  /** The version of TVM's runtime in it. */
  readonly tvm: string;
  /** Names by role. */
  readonly functions: Readonly<Record<Role | Noted, string>>;
  /** Type numbers of TVM's foreign function interface. */
  readonly types: Readonly<Record<(typeof TYPES)[number], number>>;
  /** Size of an argument: type number, and at byte 8 the value. */
  readonly any_bytes: number;
}

/** Content of a text of the library, or why the module cannot use it. */
export function readInterface(exports: WebAssembly.Exports): Interface | string {
  if (typeof exports["gemma4_driver_interface"] !== "function")
    return "the library has no driver interface: it was not made by this version of gemma4-compile";
  const missing = CALLED.filter((name) => exports[name] === undefined);
  if (missing.length > 0) return `the library lacks ${missing.join(", ")}`;
  const driver = exports as unknown as DriverExports;
  let found: Interface;
  try {
    found = JSON.parse(stringAt(driver.memory, driver.gemma4_driver_interface())) as Interface;
  } catch (error) {
    return `the library's driver interface cannot be read: ${String(error)}`;
  }
  if (found?.abi !== ABI)
    return `the library's driver interface has version ${found?.abi}, this module understands ${ABI}`;
  if (found.tvm !== MADE_FOR.tvm) return `the library holds TVM ${found.tvm}, this module was made for ${MADE_FOR.tvm}`;
  const numbers = [found.any_bytes, ...TYPES.map((name) => found.types?.[name])];
  const names = ROLES.map((role) => found.functions?.[role]);
  if (!numbers.every(Number.isInteger) || !names.every((name) => typeof name === "string"))
    return "the library's driver interface is damaged";
  return found;
}

export function stringAt(memory: WebAssembly.Memory, address: number): string {
  const bytes = new Uint8Array(memory.buffer);
  const end = bytes.indexOf(0, address);
  return new TextDecoder().decode(bytes.slice(address, end));
}

export const isNoted = (role: Role | Noted): role is Noted => (NOTED as readonly string[]).includes(role);

/** The role of a function by its name in the library. */
export function roleOf(found: Interface, name: string): Role | Noted | undefined {
  return [...NOTED, ...ROLES].find((role) => found.functions[role] === name);
}
