// Waiting for the GPU alone, in browsers that look for finished work at a timer: Firefox resolves `mapAsync` and
// `onSubmittedWorkDone` every 100 ms, whatever the GPU has done meanwhile, and at every submission, an empty one, too.
// So where a device behaves so, empty submissions are made while something waits, and none while nothing does.
import { counts } from "../stats";
import { COPY_DST, MAP_READ, READ } from "./constants";

/** What a device is asked for here, by its own methods. */
export interface WaitableDevice {
  createBuffer(descriptor: GPUBufferDescriptor): GPUBuffer;
  submit(buffers: Iterable<GPUCommandBuffer>): void;
  onSubmittedWorkDone(): Promise<undefined>;
}

/** A read of an idle device takes at least so long where a timer ends it, if it begins with a period of the timer's. */
const TIMER_MS = 50;
/** Polling makes such a read at least so many times as quick: a busy machine makes any read slow for once. */
const QUICKER = 4;
/** So many reads of each kind show it, or nothing does: any of them may end at another time for once. */
const READS = 5;
/** A device that has not answered by then is left as it is. */
const PATIENCE_MS = 2000;
const INTERVAL_MS = 2;
const MAX_INTERVAL_MS = 50;
/** What waits long is looked at less often: this share of the wait is what it may last longer. */
const SHARE = 0.02;
/** A timer so late is throttled, as in a tab that nobody sees. */
const LATE_MS = 50;

export class Waits {
  private isStopped = false;
  private waiting = 0;
  /** When a wait began or ended last, when the device is to be polled, and when the next timer is to end. */
  private changed = 0;
  private due = 0;
  private timerDue = Infinity;
  /** Whether timers may come late: the event loop's turns take their place until one is punctual. */
  private isThrottled: boolean;
  private channel: MessageChannel | undefined;
  /** After the device was destroyed: that it is told of. */
  ended: Promise<undefined> | undefined;

  /** `isTimed`: whether only a timer or a submission ends a wait on this device. */
  constructor(
    private readonly device: WaitableDevice,
    private isTimed = false,
  ) {
    this.isThrottled = isTimed; // until a timer shows that it is not: the tab may have been opened behind others
  }

  /** Counts a wait of the device's until it ends. */
  until<T>(wait: Promise<T>): Promise<T> {
    const wasIdle = !this.isNeeded();
    this.waiting += 1;
    this.changed = performance.now();
    const ended = () => {
      this.waiting -= 1;
      this.changed = performance.now();
    };
    wait.then(ended, ended);
    if (wasIdle) {
      this.due = this.changed + INTERVAL_MS;
      this.schedule();
    }
    return wait;
  }

  /** Nothing is polled any more: the device is lost, or driven by the client alone. */
  stop(): void {
    this.isStopped = true;
  }

  /** Finds out, on a device that nobody uses yet, whether only a timer ends a wait. */
  async find(): Promise<void> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let buffer: GPUBuffer | undefined;
    const patience = new Promise<false>((resolve) => {
      timer = setTimeout(() => resolve(false), PATIENCE_MS);
    });
    try {
      buffer = this.device.createBuffer({ size: 4, usage: MAP_READ | COPY_DST });
      const isTimed = await Promise.race([this.isEndedByTimer(buffer), patience]);
      this.isTimed = isTimed;
      if (isTimed) counts.timedDevices += 1;
    } catch {
      this.isTimed = false; // it is lost, or has no memory: whoever uses it hears of that
    } finally {
      clearTimeout(timer);
      buffer?.destroy();
    }
  }

  private async isEndedByTimer(buffer: GPUBuffer): Promise<boolean> {
    let alone = 0;
    // The first read may wait for a device that wakes up. A period begins where it ends, which the next one shows all of, if it
    // was begun in time.
    await this.timed(buffer);
    for (let read = 0; read < READS && alone < TIMER_MS; read += 1) alone = await this.timed(buffer);
    if (alone < TIMER_MS) return false;
    this.isTimed = true;
    this.isThrottled = true; // as in the constructor
    for (let read = 0; read < READS; read += 1) {
      if ((await this.timed(buffer)) * QUICKER <= alone) return true;
    }
    return false;
  }

  /** How long a read takes, in milliseconds. */
  private async timed(buffer: GPUBuffer): Promise<number> {
    const started = performance.now();
    await this.until(buffer.mapAsync(READ) as Promise<undefined>);
    buffer.unmap();
    return performance.now() - started;
  }

  private schedule(): void {
    if (!this.isNeeded()) return;
    if (this.timerDue > this.due) this.startTimer();
    if (this.isThrottled && !this.channel) this.takeTurns();
  }

  private startTimer(): void {
    const { due } = this;
    this.timerDue = due;
    setTimeout(() => {
      if (this.timerDue === due) this.timerDue = Infinity;
      this.isThrottled = performance.now() > due + LATE_MS;
      this.poll();
    }, due - performance.now());
  }

  private takeTurns(): void {
    this.channel = new MessageChannel();
    const { port1, port2 } = this.channel;
    port1.onmessage = () => {
      if (this.isThrottled && this.isNeeded()) {
        port2.postMessage(0);
        if (performance.now() >= this.due) this.poll();
      } else {
        port1.close();
        this.channel = undefined;
      }
    };
    port2.postMessage(0);
  }

  private isNeeded(): boolean {
    return this.waiting > 0 && this.isTimed && !this.isStopped;
  }

  private poll(): void {
    if (!this.isNeeded()) return;
    const now = performance.now();
    this.due = now + Math.min(MAX_INTERVAL_MS, Math.max(INTERVAL_MS, SHARE * (now - this.changed)));
    counts.polls += 1;
    this.device.submit([]);
    this.schedule();
  }
}

/** The event loop's next turn, also where timers come late. */
export function nextTurn(): Promise<void> {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(0);
  });
}

/** A device's own methods, whose waits are counted. */
export function withWaits<T extends WaitableDevice>(native: T, waits: Waits): T {
  return {
    ...native,
    createBuffer: (descriptor: GPUBufferDescriptor) => {
      const buffer = native.createBuffer(descriptor);
      if (descriptor.usage & MAP_READ) {
        const mapAsync = buffer.mapAsync.bind(buffer);
        buffer.mapAsync = (...range) => waits.until(mapAsync(...range) as Promise<undefined>);
      }
      return buffer;
    },
    onSubmittedWorkDone: () => waits.until(waits.ended ?? native.onSubmittedWorkDone()),
  };
}

/**
 * The device's queue has its waits counted as `native` does, and the end of the device is noted:
 * the client takes a device for lost by accident unless its end is told of before the queue's: it waits for that of a
 * device that it has destroyed. Firefox tells of the queue first, and the client then reports a lost device and unloads again.
 */
export function watchWaits(device: GPUDevice, native: WaitableDevice, waits: Waits): void {
  device.queue.onSubmittedWorkDone = native.onSubmittedWorkDone;
  const destroy = device.destroy.bind(device);
  device.destroy = () => {
    waits.ended ??= device.lost.then(() => undefined);
    return destroy();
  };
}
