import { afterEach, expect, test, vi } from "vitest";
import { seek } from "../src/media/player";

/** A player whose frames come when the test says so. */
class Player extends EventTarget {
  sought: number[] = [];
  callbacks = new Map<number, (mediaTime: number) => void>();
  private position = 0;
  private handles = 0;

  get currentTime() {
    return this.position;
  }
  set currentTime(seconds: number) {
    this.position = seconds;
    this.sought.push(seconds);
  }
  requestVideoFrameCallback(told: (now: number, frame: { mediaTime: number }) => void) {
    this.callbacks.set(++this.handles, (mediaTime) => told(0, { mediaTime }));
    return this.handles;
  }
  cancelVideoFrameCallback(handle: number) {
    this.callbacks.delete(handle);
  }
  paint(mediaTime: number) {
    const told = [...this.callbacks.values()];
    this.callbacks.clear();
    for (const tell of told) tell(mediaTime);
  }
}

function begin(seconds: number, player = new Player()) {
  vi.useFakeTimers();
  const done = vi.fn();
  const sought = seek(player as unknown as HTMLVideoElement, seconds, 20_000);
  sought.then(done, () => {});
  const settle = () => vi.advanceTimersByTimeAsync(0);
  return { player, done, sought, settle };
}

afterEach(() => vi.useRealTimers());

test("a frame is there when it is painted, not when the player has sought it", async () => {
  const { player, done, settle } = begin(2);
  player.dispatchEvent(new Event("seeked"));
  await settle();
  expect(done).not.toHaveBeenCalled();
  player.paint(1.96);
  await settle();
  expect(done).toHaveBeenCalled();
  expect(player.callbacks.size).toBe(0);
});

test("nor when it is painted before the player has sought it", async () => {
  const { player, done, settle } = begin(2);
  player.paint(1.96);
  await settle();
  expect(done).not.toHaveBeenCalled();
  player.dispatchEvent(new Event("seeked"));
  await settle();
  expect(done).toHaveBeenCalled();
});

test("a late frame of a later time is another one", async () => {
  const { player, done, settle } = begin(2);
  player.dispatchEvent(new Event("seeked"));
  player.paint(3.6); // where the length was looked for
  await settle();
  expect(done).not.toHaveBeenCalled();
  player.paint(2);
  await settle();
  expect(done).toHaveBeenCalled();
});

test("a player that is there already is moved, since it would paint nothing", async () => {
  const { player, done, settle } = begin(0);
  expect(player.sought).toEqual([0.001]);
  player.dispatchEvent(new Event("seeked"));
  player.paint(0);
  await settle();
  expect(done).toHaveBeenCalled();
});

test("a player that never says what it paints holds nothing up", async () => {
  const { player, done } = begin(2);
  player.dispatchEvent(new Event("seeked"));
  await vi.advanceTimersByTimeAsync(1000);
  expect(done).toHaveBeenCalled();
  expect(player.callbacks.size).toBe(0);
});

test("a player that finds nothing is given up", async () => {
  const { player, sought } = begin(2);
  const failed = expect(sought).rejects.toThrow("no seeked");
  await vi.advanceTimersByTimeAsync(20_000);
  await failed;
  expect(player.callbacks.size).toBe(0);
});
