// Decode steps of one conversation: through the library, from the record, or ahead of the client's call.
//
// The client's calls for a token are decode, softmax, sample, and the copy of the token to the host. The results of
// the recorded calls are kept and handed out again as long as nobody else holds them. A step that ran ahead leaves
// nothing in them: whoever looks at one makes the module run that step again, into them.
import type { Handle, Role } from "../library/abi";
import type { Entry, StepScheduler } from "../replay/multi_step";
import type { BufferState, Dependent, HostRead, Keeper } from "../gpu/buffers";
import type { Device } from "../gpu/device";
import type { Call, Conversation, Driver, Library } from "../library/library";
import { AsyncScheduler } from "./async_scheduler";
import { type Recorded, Recorder } from "../replay/recorder";
import { type Region, Scratch } from "../replay/recording";
import { Drafter } from "../speculative/drafter_state";
import { because, counts } from "../stats";
import { encode, type ReadyLaunch } from "../gpu/stream";
import { Tables } from "../replay/tables";

/** How far the client is with a token. */
// biome-ignore lint/suspicious/noConstEnum: no other file uses it, so that nothing of it is left when built
const enum Phase {
  None,
  Logits,
  Probabilities,
  Drawn,
  Read,
}

/** After the client looked at a step that ran ahead, that many single tokens at most before the next try. */
const MAX_PATIENCE = 64;
/** After a new seed two numbers are needed; after so many tokens the generator is another one. */
const MAX_UNPREDICTED = 16;

export class StepDriver implements Driver, Dependent, Keeper {
  private readonly recorded = new Map<Role, Recorded>();
  private readonly scratch: Scratch;
  private readonly recorder: Recorder;
  private tables: Tables | undefined;
  private ahead: StepScheduler | undefined;
  private single: Record<Role, ReadyLaunch[]> | undefined;
  private readonly replayedIn: Record<Role, number> = { decode: 0, softmax: 0, sample: 0 }; // submissions
  private prepared: GPUCommandBuffer | undefined;

  private phase = Phase.None;
  private isUndisturbed = false;
  private undisturbedTokens = 0;
  private unpredicted = 0; // tokens that could have run ahead, had the random numbers been known
  private patience = 1;
  private decodeCalls = 0;
  private isOurs = false; // the library's own launches touch what is kept
  private current: Entry | undefined; // the step that ran ahead and that the client is at
  private version = 0; // of the state, at the last step
  private hasEnded = false;

  static create(conversation: Conversation, onEnd: () => void): StepDriver | undefined {
    const { library, device, state, params } = conversation;
    const buffers = library.buffersOfState(state);
    if (!buffers) {
      because("the state is not one of gemma4-compile, or its buffers are not known");
      return undefined;
    }
    return new StepDriver(library, device, state, params, buffers, onEnd);
  }

  private constructor(
    private readonly library: Library,
    private readonly device: Device,
    private readonly state: Handle,
    private readonly params: Handle,
    private readonly stateBuffers: readonly BufferState[],
    private readonly onEnd: () => void,
  ) {
    this.scratch = new Scratch(device.native);
    this.recorder = new Recorder(library, device, this.scratch);
    library.exports.TVMFFIObjectIncRef(params);
    for (const buffer of stateBuffers) {
      buffer.dependents.add(this);
      buffer.keeper = this;
    }
  }

  private get positions(): BufferState {
    return this.stateBuffers[0]!;
  }

  /** Whether a call of `role` on this buffer belongs to the step that is under way. */
  owns(role: Role, buffer: BufferState): boolean {
    return this.recorded.get(role === "softmax" ? "decode" : "softmax")?.output === buffer;
  }

  call(role: Role, call: Call): number {
    if (role === "decode") return this.decode(call);
    return role === "softmax" ? this.softmax(call) : this.sample(call);
  }

  // --- The client's calls ---

  private decode(call: Call): number {
    this.endToken();
    this.decodeCalls += 1;
    const { exports } = this.library;
    const token = this.library.word(call, 0);
    const position = exports.gemma4_driver_length(this.state);
    const version = exports.gemma4_driver_version(this.state);
    const continues = version === ((this.version + 1) | 0);
    this.version = version;
    this.leave();
    this.phase = Phase.None;
    if (!continues) this.beginReply();
    const decoded = this.recorded.get("decode");
    if (!decoded && this.decodeCalls > 1 && this.recorder.canRecord("decode", call)) {
      counts.plainSteps += 1;
      const regions: [BufferState, Region][] = [
        [this.library.argument(call, 0)!, "token"],
        [this.positions, "positions"],
        [this.stateBuffers[1]!, "rotary"],
      ];
      return this.record("decode", call, regions, this.stateBuffers.slice(2), Phase.Logits);
    }
    if (!decoded || token === undefined || !this.single || !this.isFree() || this.device.openEncoders > 0) {
      this.ahead?.discard();
      counts.plainSteps += 1;
      return this.run(call);
    }
    this.phase = Phase.Logits;
    this.isUndisturbed = true;
    const entry = this.ahead!.take(position, token) ?? this.startAhead(token, position);
    if (entry) {
      this.current = entry;
      this.ahead!.refill(position);
      counts.aheadSteps += 1;
    } else {
      this.replay("decode", () => this.tables!.writeStep(token, position));
      counts.replayedSteps += 1;
    }
    return this.handOut(decoded, call);
  }

  private softmax(call: Call): number {
    const temperature = this.library.word(call, 1);
    const logits = this.library.argument(call, 0);
    const isStep = this.phase === Phase.Logits && logits !== undefined && this.owns("softmax", logits);
    if (!isStep) return this.run(call);
    if (this.ahead && temperature !== undefined)
      this.ahead.sampling = { temperature, topP: this.ahead.sampling?.topP ?? 0 };
    const softmax = this.recorded.get("softmax");
    if (!softmax && this.recorder.canRecord("softmax", call)) {
      const regions: [BufferState, Region][] = [[this.library.argument(call, 1)!, "temperature"]];
      return this.record("softmax", call, regions, [logits], Phase.Probabilities);
    }
    if (this.current && temperature !== this.current.temperature) this.repeat();
    if (!softmax || temperature === undefined || !this.single || this.device.openEncoders > 0)
      return this.disturbed(call);
    if (!this.current) this.replay("softmax", () => this.tables!.writeTemperature(temperature));
    this.phase = Phase.Probabilities;
    return this.handOut(softmax, call);
  }

  private sample(call: Call): number {
    const [uniform, topP] = [this.library.word(call, 2), this.library.word(call, 4)];
    const probabilities = this.library.argument(call, 0);
    const isStep =
      this.phase === Phase.Probabilities && probabilities !== undefined && this.owns("sample", probabilities);
    if (!isStep) return this.run(call);
    if (this.ahead?.sampling && topP !== undefined) this.ahead.sampling = { ...this.ahead.sampling, topP };
    const sample = this.recorded.get("sample");
    if (!sample && this.recorder.canRecord("sample", call)) {
      const regions: [BufferState, Region][] = [
        [this.library.argument(call, 2)!, "uniform"],
        [this.library.argument(call, 4)!, "top_p"],
      ];
      const status = this.record("sample", call, regions, [probabilities], Phase.Drawn);
      this.prepareTables();
      return status;
    }
    if (this.current && (uniform !== this.current.uniform || topP !== this.current.topP)) this.repeat();
    if (!sample || uniform === undefined || topP === undefined || !this.single || this.device.openEncoders > 0)
      return this.disturbed(call);
    if (!this.current) this.replay("sample", () => this.tables!.writeDraw(uniform, topP));
    this.phase = Phase.Drawn;
    return this.handOut(sample, call);
  }

  // --- What the client does with the results ---

  touched(state: BufferState, byHost = false): void {
    if (this.isOurs) return;
    if (this.stateBuffers.includes(state)) {
      if (byHost) return;
      // Something else than a step from the record goes on with the state, or copies it: a checkpoint is copied in
      // several calls, between which no more rows may count as written.
      if (state === this.positions) {
        this.leave();
        this.ahead?.settle();
      } else this.ahead?.pause();
      return;
    }
    this.isUndisturbed = false;
    this.undisturbedTokens = 0;
    if (this.current) this.repeat();
  }

  read(state: BufferState, bytes: number): HostRead | undefined {
    if (state === this.recorded.get("sample")?.output && this.phase === Phase.Drawn && bytes === 4) {
      this.phase = Phase.Read;
      return this.current?.read;
    }
    this.touched(state);
    return undefined;
  }

  /** The client goes on. What it still holds of a step that ran ahead must be right before the state changes. */
  private leave(): void {
    if (this.current && !this.isFree()) this.repeat();
    this.current = undefined;
  }

  /** A prompt or something else came between: the client may do other things with the tokens from here on. */
  private beginReply(): void {
    this.ahead?.discard();
    this.undisturbedTokens = 0;
    this.patience = Math.max(1, this.patience >> 1);
  }

  /** The client asks for the next token: was the last one a step like those that can run ahead? */
  private endToken(): void {
    const isWhole = this.phase === Phase.Read && this.isUndisturbed;
    this.undisturbedTokens = isWhole ? this.undisturbedTokens + 1 : 0;
    if (this.undisturbedTokens > MAX_PATIENCE) this.patience = 1;
  }

  private startAhead(token: number, position: number): Entry | undefined {
    const { ahead } = this;
    // A step's rows are those of a token that the host knows: only rounds of drafts run ahead then.
    if (this.library.hasRowsOnHost && Drafter.of(this.library).weights === 0) return undefined;
    if (ahead!.isRunning) this.backOff(); // the client goes on with another token
    if (this.undisturbedTokens < this.patience || this.recorded.size < 3) return undefined;
    if (this.library.random.state === undefined && ++this.unpredicted === MAX_UNPREDICTED) {
      because("the client draws random numbers that the module cannot foresee: no steps run ahead");
    }
    if (!ahead!.start(token, position)) return undefined;
    return ahead!.take(position, token);
  }

  /** Runs the step that the client is at by itself, so that the kept results hold what it has been given. */
  private repeat(): void {
    const { current, phase, tables } = this;
    this.current = undefined;
    this.backOff();
    counts.repeatedSteps += 1;
    this.replay("decode", () => tables!.writeStep(current!.input()!, current!.position));
    if (phase < Phase.Probabilities) return;
    this.replay("softmax", () => tables!.writeTemperature(current!.temperature));
    if (phase < Phase.Drawn) return;
    this.replay("sample", () => tables!.writeDraw(current!.uniform, current!.topP));
  }

  /** Running ahead was in vain: it is tried again after more tokens than the last time. */
  private backOff(): void {
    this.ahead!.discard();
    this.patience = Math.min(MAX_PATIENCE, this.patience * 2);
    this.undisturbedTokens = 0;
    this.isUndisturbed = false;
  }

  // --- Running and recording ---

  private run({ handle, args, count, result }: Call): number {
    return this.library.run(handle, args, count, result);
  }

  /** A call of a step that the library has to answer itself. */
  private disturbed(call: Call): number {
    this.isUndisturbed = false;
    if (this.current) this.repeat();
    this.phase = Phase.None;
    return this.run(call);
  }

  /** Runs a function in the row of a single step, whose part for it is written first. */
  private replay(role: Role, writeInputs: () => void): void {
    const { stream, native } = this.device;
    if (this.replayedIn[role] === stream.serial) stream.flush();
    writeInputs();
    if (role === "decode" && this.prepared) {
      const commands = this.prepared;
      this.prepared = undefined;
      stream.submit([commands]);
    } else {
      stream.appendReady(this.single![role]);
      this.replayedIn[role] = stream.serial;
    }
    if (role === "sample") {
      // The GPU works on this step while the next one is encoded; only its inputs are missing.
      this.device.onWait = () => {
        this.device.onWait = undefined;
        if (this.single && !this.current && !this.hasEnded) this.prepared ??= encode(native, this.single.decode);
      };
    }
  }

  /** Calls the library, and keeps what it launches and returns. */
  private record(
    role: Role,
    call: Call,
    regions: [BufferState | undefined, Region][],
    kept: BufferState[],
    phase: Phase,
  ): number {
    this.isOurs = true;
    const { status, recorded } = this.recorder.record(role, call, regions, kept);
    this.isOurs = false;
    if (!recorded) return status;
    recorded.record.dependOn(this);
    recorded.output.dependents.add(this);
    recorded.output.keeper = this;
    this.recorded.set(role, recorded);
    this.phase = phase;
    this.isUndisturbed = true;
    return status;
  }

  /** Everything is recorded: steps can run by themselves. */
  private prepareTables(): void {
    const [decode, softmax, sample] = (["decode", "softmax", "sample"] as const).map((role) => this.recorded.get(role));
    if (!decode || !softmax || !sample) return;
    const { device, library, state } = this;
    const alignment = device.device.limits.minStorageBufferOffsetAlignment;
    const tables = new Tables(library, device.native, state, alignment, sample.output.buffer);
    this.single = {
      decode: decode.record.bind(tables.single),
      softmax: softmax.record.bind(tables.single),
      sample: sample.record.bind(tables.single),
    };
    this.tables = tables;
    const { params, stateBuffers } = this;
    const owner = { library, drafter: Drafter.of(library), device, state, params, stateBuffers };
    this.ahead = new AsyncScheduler(owner, tables, { decode, softmax, sample });
  }

  /** Whether nobody but the module holds the results that a step would write. */
  private isFree(): boolean {
    return this.hasNoOtherHolder() || (this.library.releaseArguments() && this.hasNoOtherHolder());
  }

  private hasNoOtherHolder(): boolean {
    const { exports } = this.library;
    for (const { objects } of this.recorded.values()) {
      for (const object of objects) if (exports.gemma4_driver_use_count(object) > 1) return false;
    }
    return true;
  }

  private handOut({ any, objects }: Recorded, { result }: Call): number {
    this.library.copyIn(result, any);
    this.library.exports.TVMFFIObjectIncRef(objects[0]!);
    return 0;
  }

  // --- End ---

  bufferGone(): void {
    if (this.hasEnded) return;
    counts.dropped += 1;
    this.end();
  }

  /** As `end`, but what the client holds is made right first. */
  finish(): void {
    this.leave();
    this.end();
  }

  /** Forgets records and steps. */
  private end(): void {
    if (this.hasEnded) return;
    this.hasEnded = true;
    for (const buffer of this.stateBuffers) {
      buffer.dependents.delete(this);
      buffer.keeper = undefined;
    }
    for (const { record, output, objects } of this.recorded.values()) {
      record.release(this);
      output.dependents.delete(this);
      output.keeper = undefined;
      this.library.releaseLater(objects[0]!);
    }
    this.library.releaseLater(this.params);
    this.recorded.clear();
    this.device.onWait = undefined;
    this.prepared = this.single = undefined;
    this.device.stream.flush();
    this.ahead?.destroy();
    this.tables?.destroy();
    this.scratch.destroy();
    this.onEnd();
    this.library.driverEnded(this);
  }
}
