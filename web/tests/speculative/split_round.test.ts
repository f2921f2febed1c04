import { expect, it } from "vitest";
import { SplitRound } from "../../src/speculative/split_round";

/** A round whose drafts arrive, or are refused, when a test says so; what its model was given. */
function halfDone() {
  const given: (readonly number[])[] = [];
  let [arrive, refuse]: [(drafts: number[]) => void, (error: Error) => void] = [() => undefined, () => undefined];
  const drafts = new Promise<number[]>((resolve, reject) => {
    [arrive, refuse] = [resolve, reject];
  });
  const split = new SplitRound(async (drafted) => void given.push(drafted));
  return { split, given, end: split.after(drafts), arrive, refuse };
}

it("runs the model once the drafts are known, and no more after that", async () => {
  const { split, given, end, arrive } = halfDone();
  expect(given).toEqual([]);
  arrive([5, 6]);
  await end;
  split.cut();
  expect([given, split.isCut]).toEqual([[[5, 6]], false]);
});

it("runs the model at once where the client goes on, and ends as well", async () => {
  const { split, given, end, arrive } = halfDone();
  split.cut();
  split.cut();
  expect([given, split.isCut]).toEqual([[[]], true]);
  arrive([5, 6]);
  await end;
  expect(given).toEqual([[]]);
});

it("ends as the model did where it was cut, though its drafts are refused", async () => {
  const { split, end, refuse } = halfDone();
  split.cut();
  refuse(new Error("refused"));
  await end;
});

it("ends with the reason where its drafts are refused, or its model", async () => {
  const { split, given, end, refuse } = halfDone();
  refuse(new Error("refused"));
  await expect(end).rejects.toThrow("refused");
  split.cut();
  expect(given).toEqual([]);
  const broken = new SplitRound(() => Promise.reject(new Error("lost")));
  await expect(broken.after(Promise.resolve([]))).rejects.toThrow("lost");
});

it("runs nothing where its buffers went meanwhile", async () => {
  const { split, given, end, arrive } = halfDone();
  split.giveUp();
  split.cut();
  arrive([5]);
  await expect(end).rejects.toThrow("given up");
  expect(given).toEqual([]);
});
