// Which of a package's libraries runs here, right and fastest.
import { hexDigest, type Store } from "../kept";
import { PassedTests } from "../known_answer_store";
import { testedAdapter, type AdapterText, type KnownAnswers } from "../known_answers";
import { counts } from "../stats";
import { WrongLibraries } from "../wrong_libraries";
import { byExpectation, deviceDescriptor, isSmallerThan, lacking, traitsOf, type Traits } from "./fits";
import { KeptChoice } from "./kept_choice";
import { LibraryFile } from "./library_file";
import { check, endsInTime, LATE, measure, type Budget, type Outcome } from "./measure";
import type { Choice, ChooseOptions, JudgedAdapter, Measured } from "./options";
import { keptProvenance, readBounded } from "./package_files";
import { readLibraries, type WebLibrary } from "./provenance";

/** What a choice asks of its surroundings; tests make it up. */
export interface Surroundings {
  readonly gpu: Pick<GPU, "requestAdapter" | "wgslLanguageFeatures"> | undefined;
  readonly store: Store | undefined;
  readonly userAgent: string;
  now(): number;
}

type Adapter = Pick<GPUAdapter, "features" | "limits" | "info" | "requestDevice">;

/** Measuring ends after this. */
const BUDGET_MS = 400;
/** Each costs a download of half a megabyte. */
const MOST_MEASURED = 4;

const browser = (): Surroundings => ({
  gpu: globalThis.navigator?.gpu,
  store: globalThis.caches,
  userAgent: globalThis.navigator?.userAgent ?? "",
  now: () => performance.now(),
});

/** As `chooseLibrary` of gemma4-web. */
export async function choose(
  packageUrl: string,
  adapter: JudgedAdapter | undefined,
  options: ChooseOptions,
  around: Surroundings = browser(),
): Promise<Choice> {
  const base = folderOf(packageUrl);
  const get = options.fetch ?? ((url: string) => fetch(url));
  const libraries = readLibraries(await keptProvenance(`${base}provenance.json`, get, around.store));
  return among(base, libraries, adapter, options, around);
}

/** The same among libraries whose list somebody has read and checked; `base` is the folder of their files. */
export async function among(
  base: string,
  libraries: readonly WebLibrary[],
  adapter: JudgedAdapter | undefined,
  options: ChooseOptions,
  around: Surroundings = browser(),
): Promise<Choice> {
  const choice = await new Chooser(base, libraries, options, around).choose(adapter);
  counts.library = choice.name;
  counts.libraryReason = choice.why;
  return choice;
}

/** The client's way: files lie below `resolve/main/`, unless the address names a revision itself. */
function folderOf(url: string): string {
  const folder = new URL(url.endsWith("/") ? url : `${url}/`, globalThis.location?.href).href;
  return /\/resolve\/[^/]+\//.test(folder) ? folder : `${folder}resolve/main/`;
}

class Chooser {
  private readonly measured: Measured[] = [];
  private readonly files = new Map<string, LibraryFile>();
  private known: WrongLibraries | undefined;

  constructor(
    private readonly base: string,
    private readonly libraries: readonly WebLibrary[],
    private readonly options: ChooseOptions,
    private readonly around: Surroundings,
  ) {}

  async choose(judged: JudgedAdapter | undefined): Promise<Choice> {
    const { library } = this.options;
    if (library !== undefined) return this.fixed(library);
    const adapter = judged ?? (await this.requestAdapter());
    if (!adapter) throw new Error("WebGPU found no graphics device. Update the browser and the graphics driver.");
    const traits = traitsOf(adapter, this.around.gpu?.wgslLanguageFeatures, this.options.fast ?? false);
    const fitting = byExpectation(this.libraries.filter(({ needs }) => lacking(needs, traits).length === 0));
    if (fitting.length === 0) throw new Error(noneFits(this.libraries, traits));
    const text = textOf(adapter);
    const { store, userAgent } = this.around;
    const seen = { ...traits, features: [...traits.features], languageFeatures: [...traits.languageFeatures] };
    const kept = await KeptChoice.open(this.libraries, text, seen, userAgent, store);
    const before = this.options.measure === false ? undefined : await kept?.read(Date.now());
    const again = fitting.filter(({ name }) => name === before?.name);
    const [same] = await this.withoutKnownWrong(again, tested(adapter, traits));
    if (before && same && fitting.length > 1) return this.choice(same, before.why);
    this.measured.length = 0;
    const usable = await this.withoutKnownWrong(fitting, tested(adapter, traits));
    const [best] = usable;
    if (!best) throw new Error(allWrong(this.measured, KNOWN_WRONG_HINT));
    if (usable.length === 1)
      return this.choice(best, usable === fitting ? onlyOne(this.libraries.length) : `${LEFT}${this.problems()}`);
    if (this.options.measure === false) return this.choice(best, `${EXPECTED}: nothing was measured`);
    const found = await this.measureAll(usable, traits, text);
    const isMeasured = this.measured.some(
      ({ name, microseconds }) => name === found.name && microseconds !== undefined,
    );
    await kept?.write(found, isMeasured, Date.now());
    return found;
  }

  /** Those that were not found wrong on this device before; the list itself where none was. */
  private async withoutKnownWrong(fitting: WebLibrary[], adapter: AdapterText): Promise<WebLibrary[]> {
    const { store, userAgent } = this.around;
    this.known ??= await WrongLibraries.open(store, userAgent);
    if (!(await this.known?.areAny())) return fitting;
    const usable: WebLibrary[] = [];
    for (const library of fitting) {
      await this.load(library);
      const answers = this.answersOf(library);
      if (!answers || !(await this.known?.has(answers, adapter))) usable.push(library);
      else this.measured.push({ name: library.name, problem: "its results were wrong on this device before" });
    }
    return usable.length === fitting.length ? fitting : usable;
  }

  private answersOf({ name }: WebLibrary): KnownAnswers | undefined {
    try {
      return this.files.get(name)?.answers();
    } catch {
      return undefined;
    }
  }

  private fixed(name: string): Choice {
    const library = this.libraries.find((each) => each.name === name);
    if (library) return this.choice(library, "it was asked for by name");
    const names = this.libraries.map((each) => each.name).join(", ");
    throw new Error(`The package has no library \`${name}\` for browsers: it has ${names}.`);
  }

  private choice({ file, name, needs }: WebLibrary, why: string): Choice {
    return {
      model_lib: this.base + file,
      required_features: [...needs.features],
      name,
      why,
      file,
      measured: this.measured,
    };
  }

  // As the client asks for it. A device takes up its adapter, which is why measuring never uses the caller's.
  private requestAdapter(): Promise<GPUAdapter | null> {
    return this.around.gpu?.requestAdapter({ powerPreference: "high-performance" }) ?? Promise.resolve(null);
  }

  private async measureAll(fitting: WebLibrary[], traits: Traits, text: AdapterText): Promise<Choice> {
    const [best] = fitting as [WebLibrary];
    const small = fitting.filter((each) => fitting.some((other) => isSmallerThan(each, other)));
    const worthwhile = fitting.filter((each) => !small.includes(each)).slice(0, MOST_MEASURED);
    await Promise.all(worthwhile.map((library) => this.load(library)));
    const own = await this.requestAdapter().catch(() => null);
    if (!own || JSON.stringify(textOf(own)) !== JSON.stringify(text))
      return this.choice(best, `${EXPECTED}: the device could not be opened for a measurement`);
    const { now } = this.around;
    const budget: Budget = { now, end: now() + BUDGET_MS };
    const device = await openDevice(own, traits, budget);
    if (!device) return this.choice(best, `${EXPECTED}: the device could not be opened for a measurement`);
    try {
      return await this.run(device, fitting, worthwhile, budget, adapterOf(own));
    } finally {
      device.destroy();
    }
  }

  private async run(
    device: GPUDevice,
    fitting: WebLibrary[],
    worthwhile: WebLibrary[],
    budget: Budget,
    adapter: AdapterText,
  ): Promise<Choice> {
    const wrong = new Set<WebLibrary>();
    /** With which the device was lost. */
    const ends = new Set<WebLibrary>();
    const right: { library: WebLibrary; microseconds: number }[] = [];
    const isOver = () => ends.size > 0 || budget.now() >= budget.end;
    const judge = async (library: WebLibrary, { kind }: Outcome) => {
      if (kind === "lost") ends.add(library);
      if (kind !== "wrong") return;
      wrong.add(library);
      const answers = this.answersOf(library);
      if (answers) await this.known?.add(answers, testedAdapter(adapter, device.features));
    };
    const take = async (library: WebLibrary) => {
      const outcome = await this.measureOne(device, library, budget, adapter);
      if (outcome.kind === "right") right.push({ library, microseconds: outcome.microseconds });
      await judge(library, outcome);
    };
    for (const library of worthwhile) if (!isOver()) await take(library);
    // What is smaller than a wrong one may be right.
    const rest = fitting.filter((library) => !worthwhile.includes(library));
    for (const library of rest) {
      if (right.length > 0 || isOver()) break;
      await this.load(library);
      await take(library);
    }
    right.sort((a, b) => a.microseconds - b.microseconds);
    for (const { library } of right) {
      const outcome = await this.checkWhole(device, library, isOver(), budget, adapter);
      await judge(library, outcome);
      if (outcome.kind === "right" || outcome.kind === "unknown") return this.choice(library, this.whyOf(library));
      this.note(library, outcome.message);
    }
    const untested = fitting.filter((library) => !wrong.has(library));
    if (untested.length === 0) throw new Error(allWrong(this.measured));
    return this.unmeasured(untested, ends, wrong.size > 0, adapter);
  }

  /**
   * Of libraries that nothing was found out about: one whose load has passed its test before; else the fastest, or, on
   * a device that is known to be wrong, the one that asks least of it.
   */
  private async unmeasured(
    untested: WebLibrary[],
    ends: ReadonlySet<WebLibrary>,
    isDoubtful: boolean,
    adapter: AdapterText,
  ): Promise<Choice> {
    const { store, userAgent } = this.around;
    for (const library of untested) {
      await this.load(library);
      const answers = this.answersOf(library);
      const passed = answers && (await PassedTests.open(answers, adapter, userAgent, store));
      if (await passed?.has()) return this.choice(library, `its results were right here before${this.problems()}`);
    }
    const calm = untested.filter((library) => !ends.has(library));
    const candidates = calm.length > 0 ? calm : untested;
    if (!isDoubtful && ends.size === 0) return this.choice(candidates[0]!, this.whyUntested());
    return this.choice(candidates.at(-1)!, `asks least of the device${this.problems()}`);
  }

  private async measureOne(
    device: GPUDevice,
    library: WebLibrary,
    budget: Budget,
    adapter: AdapterText,
  ): Promise<Outcome> {
    const file = this.files.get(library.name);
    if (!file) return { kind: "unknown", message: "its file did not come" };
    const outcome = await measure(device, file, adapter, budget).catch(
      (error: unknown): Outcome => ({ kind: "unknown", message: String(error) }),
    );
    if (outcome.kind === "right") this.measured.push({ name: library.name, microseconds: outcome.microseconds });
    else this.measured.push({ name: library.name, problem: outcome.message });
    return outcome;
  }

  /** The other kernels of the one that won, in the time that is left; the load tests them in any case. */
  private async checkWhole(
    device: GPUDevice,
    library: WebLibrary,
    isOver: boolean,
    budget: Budget,
    adapter: AdapterText,
  ): Promise<Outcome> {
    if (isOver) return { kind: "unknown", message: "no time was left" };
    return check(device, this.files.get(library.name)!, adapter, budget);
  }

  private note(library: WebLibrary, problem: string): void {
    const measured = this.measured.find(({ name }) => name === library.name)!;
    delete measured.microseconds;
    measured.problem = problem;
  }

  /** Fetches a library's file, if it is the one that the provenance names. */
  private async load(library: WebLibrary): Promise<void> {
    if (this.files.has(library.name)) return;
    const get = this.options.fetch ?? ((url: string) => fetch(url));
    const bytes = await get(this.base + library.file)
      .then((response) => readBounded(response, library.nbytes))
      .catch(() => undefined);
    if (bytes?.length === library.nbytes && (await hexDigest(bytes)) === library.sha256)
      this.files.set(library.name, new LibraryFile(bytes));
  }

  private whyOf({ name }: WebLibrary): string {
    const others = this.measured.filter((each) => each.name !== name);
    const slower = others.filter(({ microseconds }) => microseconds !== undefined);
    const own = this.measured.find((each) => each.name === name)!.microseconds!;
    const wrong = others.filter(({ microseconds }) => microseconds === undefined);
    const times = slower.map((each) => `${each.name} ${shown(each.microseconds!)}`).join(", ");
    const problems = wrong.map((each) => `${each.name}: ${firstLine(each.problem!)}`).join("; ");
    const first = slower.length ? `the fastest here: ${shown(own)} (${times})` : `right here: ${shown(own)}`;
    return problems ? `${first}; ${problems}` : first;
  }

  private whyUntested(): string {
    return EXPECTED + (this.problems() || ": nothing could be measured");
  }

  private problems(): string {
    return this.measured.map(({ name, problem }) => `; ${name}: ${firstLine(problem ?? "")}`).join("");
  }
}

const EXPECTED = "expected to be the fastest of those that fit";

const LEFT = "the only one left";
const DRIVER_HINT = "Update the graphics driver and the browser, or use another graphics device.";
const KNOWN_WRONG_HINT = `${DRIVER_HINT} After an update remove this site's stored data: what was found is kept for 30 days.`;

function onlyOne(count: number): string {
  return count === 1 ? "the package's only one" : `the only one of ${count} that fits`;
}

function noneFits(libraries: readonly WebLibrary[], traits: Traits): string {
  const each = libraries.map(({ name, needs }) => `${name} needs ${lacking(needs, traits).join(", ")}`);
  return `None of the package's libraries runs here: ${each.join("; ")}. Use another browser or graphics device, or a package with all libraries (gemma4-compile --target webgpu).`;
}

function allWrong(measured: readonly Measured[], hint = DRIVER_HINT): string {
  const each = measured.map(({ name, problem }) => `${name}: ${firstLine(problem ?? "")}`);
  return `No library of the package computes right results here (${each.join("; ")}).\n${hint}`;
}

function firstLine(text: string): string {
  return text.split("\n", 1)[0]!.slice(0, 300);
}

function shown(microseconds: number): string {
  return microseconds < 1000 ? `${Math.round(microseconds)} us` : `${(microseconds / 1000).toFixed(1)} ms`;
}

function textOf({ info }: Pick<GPUAdapter, "info">): AdapterText {
  const { vendor = "", architecture = "", device = "", description = "" } = info ?? {};
  return { vendor, architecture, device, description };
}

function tested(adapter: Pick<GPUAdapter, "info">, traits: Traits): AdapterText {
  return testedAdapter(adapterOf(adapter), new Set<string>(deviceDescriptor(traits).requiredFeatures));
}

function adapterOf(adapter: Pick<GPUAdapter, "info">): AdapterText & { subgroupMaxSize?: number } {
  const { subgroupMinSize, subgroupMaxSize } = (adapter.info ?? {}) as {
    subgroupMinSize?: number;
    subgroupMaxSize?: number;
  };
  return {
    ...textOf(adapter),
    ...(subgroupMinSize && { subgroupMinSize }),
    ...(subgroupMaxSize && { subgroupMaxSize }),
  };
}

async function openDevice(adapter: Adapter, traits: Traits, budget: Budget): Promise<GPUDevice | undefined> {
  const descriptor = deviceDescriptor(traits);
  const clock = adapter.features.has("timestamp-query") ? (["timestamp-query"] as const) : [];
  const requiredFeatures = [...descriptor.requiredFeatures!, ...clock];
  const opened = adapter.requestDevice({ ...descriptor, requiredFeatures }).catch(() => undefined);
  const device = await endsInTime(opened, budget);
  if (device !== LATE) return device;
  void opened.then((late) => late?.destroy());
  return undefined;
}
