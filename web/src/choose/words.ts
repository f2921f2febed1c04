// What is said of a choice.
import { lacking, type Traits } from "./fits";
import type { Measured } from "./options";
import type { WebLibrary } from "./provenance";

export const EXPECTED = "expected to be the fastest of those that fit";
export const LEFT = "the only one left";
export const STORED = "its file is stored here, and there is no network";
const DRIVER_HINT = "Update the graphics driver and the browser, or use another graphics device.";
export const KNOWN_WRONG_HINT = `${DRIVER_HINT} After an update remove this site's stored data: what was found is kept for 30 days.`;

export function onlyOne(count: number): string {
  return count === 1 ? "the package's only one" : `the only one of ${count} that fits`;
}

export function noneFits(libraries: readonly WebLibrary[], traits: Traits): string {
  const each = libraries.map(({ name, needs }) => `${name} needs ${lacking(needs, traits).join(", ")}`);
  return `None of the package's libraries runs here: ${each.join("; ")}. Use another browser or graphics device, or a package with all libraries (gemma4-compile --target webgpu).`;
}

export function allWrong(measured: readonly Measured[], hint = DRIVER_HINT): string {
  const each = measured.map(({ name, problem }) => `${name}: ${firstLine(problem ?? "")}`);
  return `No library of the package computes right results here (${each.join("; ")}).\n${hint}`;
}

/** Why the library of this name was taken, which was timed. */
export function whyOf(measured: readonly Measured[], name: string): string {
  const own = measured.find((each) => each.name === name)!.microseconds!;
  const others = measured.filter((each) => each.name !== name);
  const timed = others.flatMap((each) =>
    each.microseconds === undefined ? [] : [[each.name, each.microseconds] as const],
  );
  const times = timed.map(([other, microseconds]) => `${other} ${shown(microseconds)}`).join(", ");
  const isFastest = timed.every(([, microseconds]) => own <= microseconds);
  const praise = isFastest ? "the fastest here" : "as fast as any here";
  const first = times ? `${praise}: ${shown(own)} (${times})` : `right here: ${shown(own)}`;
  return first + problemsOf(others);
}

export function whyUntested(measured: readonly Measured[]): string {
  return EXPECTED + (problemsOf(measured) || ": nothing could be measured");
}

export function problemsOf(measured: readonly Measured[]): string {
  const wrong = measured.filter(({ microseconds }) => microseconds === undefined);
  return wrong.map(({ name, problem }) => `; ${name}: ${firstLine(problem ?? "")}`).join("");
}

function firstLine(text: string): string {
  return text.split("\n", 1)[0]!.slice(0, 300);
}

function shown(microseconds: number): string {
  return microseconds < 1000 ? `${Math.round(microseconds)} us` : `${(microseconds / 1000).toFixed(1)} ms`;
}
