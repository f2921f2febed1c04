import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Device } from "../../src/gpu/device";
import { counts } from "../../src/stats";
import { Waits, withWaits } from "../../src/gpu/waits";
import { fakeTimedDevice, type TimedDevice } from "../fake_timer";

const PERIOD_MS = 100;
const MAP_READ = 1;
const READABLE = { size: 4, usage: MAP_READ | 8 };

/** How long a turn of the event loop takes here. */
const TURN_MS = 0.25;
/** What a tab that nobody sees waits at least, whatever it asks for. */
const HIDDEN_MS = 1000;
const turns = { made: 0, open: 0 };
let timer: typeof setTimeout;

/** A channel to oneself, by the clock of the tests. */
class Turns {
  readonly port1 = { onmessage: () => undefined, close: () => (turns.open -= 1) };
  readonly port2 = {
    postMessage: () => {
      turns.made += 1;
      timer(() => this.port1.onmessage(), TURN_MS);
    },
  };

  constructor() {
    turns.open += 1;
  }
}

function hide(): void {
  vi.stubGlobal("setTimeout", (action: () => void, ms: number) => timer(action, Math.max(HIDDEN_MS, ms)));
}

function show(): void {
  vi.stubGlobal("setTimeout", timer);
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"] });
  Object.assign(counts, { timedDevices: 0, polls: 0 });
  Object.assign(turns, { made: 0, open: 0 });
  timer = globalThis.setTimeout;
  vi.stubGlobal("MessageChannel", Turns);
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

/** What finds out about a device, and how long that takes. */
async function found(device: TimedDevice): Promise<Waits> {
  const waits = new Waits(device);
  const finding = waits.find();
  await vi.advanceTimersByTimeAsync(3000);
  await finding;
  return waits;
}

/** How long a read of so much work takes, by the device's clock; -1: it fails. */
async function readMs(device: TimedDevice, waits: Waits, workMs: number): Promise<number> {
  const buffer = withWaits(device, waits).createBuffer(READABLE);
  const started = performance.now();
  let ms = 0;
  device.work(workMs);
  void buffer.mapAsync(MAP_READ).then(
    () => (ms = performance.now() - started),
    () => (ms = -1),
  );
  await vi.advanceTimersByTimeAsync(3000);
  return ms;
}

/** Does something before each read. */
function beforeReads(device: TimedDevice, action: () => void): void {
  const { createBuffer } = device;
  device.createBuffer = (descriptor) => {
    const buffer = createBuffer(descriptor);
    const { mapAsync } = buffer;
    buffer.mapAsync = (...mode) => {
      action();
      return mapAsync.apply(buffer, mode);
    };
    return buffer;
  };
}

describe("a device whose waits a timer ends", () => {
  it.each([1, 4])("is found where the first %i of its polled reads are slow for another reason", async (slow) => {
    const device = fakeTimedDevice(PERIOD_MS);
    const busyMs = [0, 0, ...Array<number>(slow).fill(90)]; // the first reads show the period
    beforeReads(device, () => device.work(busyMs.shift() ?? 0));
    await found(device);
    expect(busyMs).toEqual([]);
    expect(counts.timedDevices).toBe(1);
  });

  it("is found where others end its first reads", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    timer(() => device.submit([]), 20);
    timer(() => device.submit([]), 40);
    await found(device);
    expect(counts.timedDevices).toBe(1);
  });

  it("is found, and polled while a read waits", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    const waits = await found(device);
    expect(counts.timedDevices).toBe(1);
    expect(await readMs(device, waits, 7)).toBeLessThan(12);
    expect(await readMs(device, waits, 43)).toBeLessThan(50);
  });

  it("is found wherever in the timer's period its first read begins, and soon", async () => {
    for (const phase of [0, 10, 49, 51, 99]) {
      counts.timedDevices = 0;
      const device = fakeTimedDevice(PERIOD_MS);
      await vi.advanceTimersByTimeAsync(phase);
      const started = performance.now();
      let took = 0;
      void new Waits(device).find().then(() => (took = performance.now() - started));
      await vi.advanceTimersByTimeAsync(1000);
      expect(counts.timedDevices).toBe(1);
      expect(took).toBeLessThan(2 * PERIOD_MS + 10);
      device.stop();
    }
  });

  it("is left alone while nothing waits", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    const waits = await found(device);
    await readMs(device, waits, 7);
    const { submissions } = device;
    await vi.advanceTimersByTimeAsync(10_000);
    expect(device.submissions).toBe(submissions);
    expect(counts.polls).toBe(submissions);
    device.stop();
    expect(vi.getTimerCount()).toBe(0);
  });

  it("is polled for its queue and for several reads at a time", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    const waits = await found(device);
    const native = withWaits(device, waits);
    const ended: string[] = [];
    device.work(5);
    void native
      .createBuffer(READABLE)
      .mapAsync(MAP_READ)
      .then(() => ended.push("first"));
    device.work(20);
    void native.onSubmittedWorkDone().then(() => ended.push("all"));
    await vi.advanceTimersByTimeAsync(15);
    expect(ended).toEqual(["first"]);
    await vi.advanceTimersByTimeAsync(17);
    expect(ended).toEqual(["first", "all"]);
  });

  it("is looked at seldom where the work takes long", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    const waits = await found(device);
    const { submissions } = device;
    expect(await readMs(device, waits, 2000)).toBeLessThan(2000 * 1.03);
    expect(device.submissions - submissions).toBeLessThan(300);
  });

  it("is no longer polled when it is lost, or driven by the client alone", async () => {
    for (const isLost of [true, false]) {
      const device = fakeTimedDevice(PERIOD_MS);
      const waits = await found(device);
      device.work(1e9);
      const read = withWaits(device, waits).createBuffer(READABLE).mapAsync(MAP_READ);
      read.catch(() => undefined);
      await vi.advanceTimersByTimeAsync(50);
      expect(counts.polls).toBeGreaterThan(0);
      if (isLost) device.lose();
      waits.stop();
      const { submissions } = device;
      await vi.advanceTimersByTimeAsync(1000);
      expect(device.submissions).toBe(submissions);
    }
  });

  it("does not stay polled for a read that fails", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    const waits = await found(device);
    device.isRefusing = true;
    expect(await readMs(device, waits, 5)).toBe(-1);
    const { submissions } = device;
    await vi.advanceTimersByTimeAsync(1000);
    expect(device.submissions).toBe(submissions);
  });
});

describe("a device whose waits a timer ends, in a tab that nobody sees", () => {
  /** Short reads, one after the other, as those of tokens: how long each took. */
  async function reads(device: TimedDevice, waits: Waits, count: number): Promise<number[]> {
    const native = withWaits(device, waits);
    const took: number[] = [];
    const readAll = async () => {
      for (let read = 0; read < count; read++) {
        const started = performance.now();
        device.work(7);
        await native.createBuffer(READABLE).mapAsync(MAP_READ);
        took.push(performance.now() - started);
      }
    };
    void readAll();
    await vi.advanceTimersByTimeAsync(3000);
    expect(took).toHaveLength(count);
    return took;
  }

  it("is polled for a read that nothing else ends", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    const waits = await found(device);
    device.pauseTimer();
    hide();
    expect(await readMs(device, waits, 1030)).toBeLessThan(1070);
    expect(turns.made).toBeGreaterThan(1);
    expect(turns.open).toBe(0);
  });

  it("is polled for one short read after the other, once a timer was late", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    const waits = await found(device);
    hide();
    const took = await reads(device, waits, 100);
    const slow = took.filter((ms) => ms >= 12);
    expect(slow.length).toBeLessThanOrEqual(Math.ceil(HIDDEN_MS / PERIOD_MS));
  });

  it("is polled by timers again when the tab is seen", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    const waits = await found(device);
    hide();
    await reads(device, waits, 100);
    show();
    await reads(device, waits, 1);
    turns.made = 0;
    expect(Math.max(...(await reads(device, waits, 20)))).toBeLessThan(12);
    expect(turns.made).toBe(0);
    expect(turns.open).toBe(0);
  });

  it("is polled by timers again within a long read when a thread was busy for once", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    const waits = await found(device);
    turns.made = 0;
    hide();
    timer(show, 500);
    expect(await readMs(device, waits, 2000)).toBeLessThan(2000 * 1.03);
    expect(turns.made).toBeGreaterThan(0);
    expect(turns.made * TURN_MS).toBeLessThan(50);
  });

  it("is found, if the page was opened there, and polled from the first read on", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    hide();
    const waits = await found(device);
    expect(counts.timedDevices).toBe(1);
    expect(Math.max(...(await reads(device, waits, 20)))).toBeLessThan(12);
    expect(turns.open).toBe(0);
  });

  it("is looked at soon in a read that follows a long one", async () => {
    const device = fakeTimedDevice(PERIOD_MS);
    const waits = await found(device);
    const native = withWaits(device, waits);
    let took = 0;
    device.work(1910);
    void native
      .createBuffer(READABLE)
      .mapAsync(MAP_READ)
      .then(async () => {
        const started = performance.now();
        device.work(7);
        await native.createBuffer(READABLE).mapAsync(MAP_READ);
        took = performance.now() - started;
      });
    await vi.advanceTimersByTimeAsync(3000);
    expect(took).toBeGreaterThan(0);
    expect(took).toBeLessThan(12);
  });
});

describe("a device that tells of its work itself", () => {
  it("is not polled, whether idle or busy", async () => {
    const device = fakeTimedDevice(0);
    const waits = await found(device);
    expect(counts.timedDevices).toBe(0);
    expect(await readMs(device, waits, 500)).toBe(500);
    expect(device.submissions).toBe(0);
  });

  it("is not polled where reads are slow for another reason", async () => {
    const device = fakeTimedDevice(0);
    device.latencyMs = 60;
    await found(device);
    expect(counts.timedDevices).toBe(0);
  });

  it("is not polled where its first read alone is slow", async () => {
    const device = fakeTimedDevice(0);
    let reads = 0;
    beforeReads(device, () => (device.latencyMs = reads++ === 0 ? 120 : 1));
    const waits = await found(device);
    expect(counts.timedDevices).toBe(0);
    expect(await readMs(device, waits, 500)).toBe(501);
    expect(device.submissions).toBe(0);
  });

  it.each(["silent", "lost", "without memory"])("is left as it is when it is %s", async (what) => {
    const device = fakeTimedDevice(PERIOD_MS);
    if (what === "silent") device.pauseTimer();
    else if (what === "lost") device.lose();
    else
      device.createBuffer = () => {
        throw new RangeError("no memory");
      };
    const waits = await found(device);
    expect(counts.timedDevices).toBe(0);
    void waits.until(new Promise(() => undefined));
    const { submissions } = device;
    await vi.advanceTimersByTimeAsync(1000);
    expect(device.submissions).toBe(submissions);
  });
});

describe("several devices", () => {
  it("are polled each for its own reads", async () => {
    const devices = [fakeTimedDevice(PERIOD_MS), fakeTimedDevice(PERIOD_MS)];
    const [first, second] = await Promise.all(devices.map(found));
    expect(counts.timedDevices).toBe(2);
    const idle = devices[1]!.submissions;
    await readMs(devices[0]!, first!, 30);
    expect(devices[1]!.submissions).toBe(idle);
    expect(await readMs(devices[1]!, second!, 7)).toBeLessThan(12);
  });
});

describe("a device of the client's", () => {
  it("is polled for the client's own reads, before and after it is bound, and not once it is plain", async () => {
    Object.assign(globalThis, { GPUBufferUsage: { MAP_READ: 1, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128 } });
    const fake = fakeTimedDevice(PERIOD_MS);
    let isOwned = false;
    const made = fake.asDevice();
    const device = new Device(made, {} as GPUAdapterInfo, { claims: () => isOwned, isCalling: () => false });
    const finding = device.waits.find();
    await vi.advanceTimersByTimeAsync(1000);
    await finding;
    const read = async (ms: number) => {
      const buffer = made.createBuffer(READABLE);
      const started = performance.now();
      let took = 0;
      fake.work(ms);
      void buffer.mapAsync(MAP_READ).then(() => (took = performance.now() - started));
      await vi.advanceTimersByTimeAsync(500);
      return took;
    };
    const queueMs = async () => {
      const started = performance.now();
      let took = 0;
      fake.work(7);
      void made.queue.onSubmittedWorkDone().then(() => (took = performance.now() - started));
      await vi.advanceTimersByTimeAsync(500);
      return took;
    };
    for (isOwned of [false, true]) {
      const { submissions } = fake;
      expect(await read(7)).toBeLessThan(12);
      expect(await queueMs()).toBeLessThan(12);
      expect(fake.submissions).toBeGreaterThan(submissions);
    }
    device.makePlain();
    const plain = fake.submissions;
    await read(7);
    expect(fake.submissions).toBe(plain);
  });
});

describe("a device that the client destroys", () => {
  it("has its queue end no sooner than it is told of", async () => {
    const fake = fakeTimedDevice(0);
    const made = fake.asDevice();
    const device = new Device(made, {} as GPUAdapterInfo, { claims: () => true, isCalling: () => false });
    made.createBuffer(READABLE);
    const told: string[] = [];
    void made.lost.then(() => told.push("lost"));
    made.destroy();
    void made.queue.onSubmittedWorkDone().then(() => told.push("done"));
    await vi.advanceTimersByTimeAsync(100);
    expect(told).toEqual(["lost", "done"]);
    expect(device.isLost).toBe(true);
  });
});
