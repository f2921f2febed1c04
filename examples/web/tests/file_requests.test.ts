// Requests for a long file: no server is asked for more than a part at a time, and one that does no ranges serves, too.
import { afterEach, expect, it, vi } from "vitest";
import { Refused, Unreachable } from "../src/download/fetch";
import { FileRequests } from "../src/download/file_requests";

const CONTENT = Uint8Array.from({ length: 1000 }, (_, i) => (i * 37 + (i >> 8)) % 256);
const PART = 300;

afterEach(() => vi.unstubAllGlobals());

type Answer = (range: string | undefined) => Response;

/** A server that does ranges. */
const ranged: Answer = (range) => {
  const [, begin, last] = /^bytes=(\d+)-(\d*)$/.exec(range ?? "bytes=0-")!;
  const end = last ? Number(last) + 1 : CONTENT.length;
  return new Response(CONTENT.slice(Number(begin), end), { status: range ? 206 : 200 });
};

/** What comes from `begin` on, and the ranges that were asked for. */
async function fetched(answer: Answer, { begin = 0, isLong = true, times = 1 } = {}) {
  vi.stubGlobal("navigator", {});
  const ranges: (string | undefined)[] = [];
  vi.stubGlobal("fetch", async (_url: string, { headers }: { headers: { range?: string } }) => {
    ranges.push(headers.range);
    return answer(headers.range);
  });
  const requests = new FileRequests(
    "https://x.y/a",
    CONTENT.length,
    new AbortController().signal,
    isLong ? PART : undefined,
  );
  const bytes: number[] = [];
  const failures: unknown[] = [];
  for (let time = 0; time < times; time++) {
    try {
      for await (const piece of requests.from(begin + bytes.length, "no-cache")) bytes.push(...piece);
    } catch (error) {
      failures.push(error);
    }
  }
  return { bytes, ranges, failures };
}

it("asks for part after part, the last one to the file's end", async () => {
  const { bytes, ranges } = await fetched(ranged);
  expect(bytes).toEqual([...CONTENT]);
  expect(ranges).toEqual(["bytes=0-299", "bytes=300-599", "bytes=600-899", "bytes=900-"]);
});

it.each([
  [250, ["bytes=250-549", "bytes=550-849", "bytes=850-"]],
  [700, ["bytes=700-"]],
])("goes on from byte %i in parts", async (begin, expected) => {
  const { bytes, ranges } = await fetched(ranged, { begin });
  expect(bytes).toEqual([...CONTENT.slice(begin)]);
  expect(ranges).toEqual(expected);
});

it("asks for a file that is not long as ever", async () => {
  const { bytes, ranges } = await fetched(ranged, { isLong: false });
  expect(bytes).toEqual([...CONTENT]);
  expect(ranges).toEqual([undefined]);
});

it("takes all from a server that does no ranges, by one request, from the beginning and from where it broke off", async () => {
  const whole: Answer = () => new Response(CONTENT);
  expect(await fetched(whole)).toMatchObject({ bytes: [...CONTENT], ranges: ["bytes=0-299"] });
  const rest = await fetched(whole, { begin: 450 });
  expect(rest).toMatchObject({ bytes: [...CONTENT.slice(450)], ranges: ["bytes=450-749"] });
});

it("asks without a range after a first request that did not get through, as another site's may not", async () => {
  const strict: Answer = (range) => {
    if (range) throw new TypeError("the preflight was refused");
    return new Response(CONTENT);
  };
  const { bytes, ranges, failures } = await fetched(strict, { times: 2 });
  expect(bytes).toEqual([...CONTENT]);
  expect(ranges).toEqual(["bytes=0-299", undefined]);
  expect(failures).toEqual([expect.any(Unreachable)]);
});

it("goes on in parts after a later one broke off", async () => {
  let count = 0;
  const breaking: Answer = (range) => {
    count += 1;
    if (count === 2) throw new TypeError("network error");
    return ranged(range);
  };
  const { bytes, ranges, failures } = await fetched(breaking, { times: 2 });
  expect(bytes).toEqual([...CONTENT]);
  expect(ranges).toEqual(["bytes=0-299", "bytes=300-599", "bytes=300-599", "bytes=600-899", "bytes=900-"]);
  expect(failures).toHaveLength(1);
});

it("asks no further where a part is cut off or too long: that is for the hash to say", async () => {
  const short = await fetched(() => new Response(CONTENT.slice(0, 200), { status: 206 }));
  expect([short.bytes.length, short.ranges.length]).toEqual([200, 1]);
  const long = await fetched(() => new Response(CONTENT.slice(0, 301), { status: 206 }));
  expect([long.bytes.length, long.ranges.length]).toEqual([301, 1]);
  const empty = await fetched(() => new Response(new Uint8Array(0), { status: 206 }));
  expect([empty.bytes.length, empty.ranges.length]).toEqual([0, 1]);
});

it("says what the server refuses", async () => {
  const { failures } = await fetched(() => new Response("", { status: 403 }));
  expect(failures).toEqual([expect.any(Refused)]);
});
