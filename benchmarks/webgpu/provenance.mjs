// Fields of every result line of a package.
import fs from "node:fs";
import path from "node:path";
import { versions } from "./packages.mjs";

const buildOf = (directory) => JSON.parse(fs.readFileSync(path.join(directory, "provenance.json"), "utf8")).build;

/** WebGPU features that a package's kernels need. */
export const featuresOf = (directory) => buildOf(directory).requirements?.features ?? [];

function provenance(directory) {
  const build = buildOf(directory);
  return {
    model: build.source.model ?? build.source.kind,
    recipe: build.recipe,
    limits: build.limits,
    activations: build.activations ?? "float",
    prefill_chunk: build.prefill_chunk,
    versions: { ...build.versions, ...versions },
  };
}

/** Of a package (`options.package`) on a device. */
export function commonFields(options, description) {
  return {
    benchmark: "webgpu",
    date: new Date().toISOString().slice(0, 10),
    commit: options.commit,
    ...provenance(options.package),
    weights: options.weights ?? "synthetic",
    device: description.name,
    driver: description.driver,
    validation: !options["skip-validation"],
  };
}
