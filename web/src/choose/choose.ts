// Which of a package's libraries runs here, right and fastest.
import { hexDigest, type Store } from "../kept";
import { PassedTests } from "../selftest/known_answer_store";
import { testedAdapter, type AdapterText, type KnownAnswers } from "../selftest/known_answers";
import { counts } from "../stats";
import { WrongLibraries } from "../selftest/wrong_libraries";
import { Contest } from "./contest";
import { byExpectation, deviceDescriptor, isSmallerThan, lacking, traitsOf, type Traits } from "./fits";
import { KeptChoice, type Kept } from "./kept_choice";
import { LibraryFile } from "./library_file";
import { check, endsInTime, LATE, type Budget, type Failure } from "./measure";
import { openMeasured } from "./measured_device";
import type { Choice, ChooseOptions, JudgedAdapter, Measured } from "./options";
import { folderOf, isStored, keptProvenance, readBounded } from "./package_files";
import { readLibraries, type WebLibrary } from "./provenance";
import {
  allWrong,
  EXPECTED,
  KNOWN_WRONG_HINT,
  LEFT,
  noneFits,
  onlyOne,
  problemsOf,
  STORED,
  whyOf,
  whyUntested,
} from "./words";

/** What a choice asks of its surroundings; tests make it up. */
export interface Surroundings {
  readonly gpu: Pick<GPU, "requestAdapter" | "wgslLanguageFeatures"> | undefined;
  readonly store: (Store & Partial<Pick<CacheStorage, "match">>) | undefined;
  readonly userAgent: string;
  /** Of the processor. */
  readonly cores: number;
  now(): number;
}

/** Measuring ends after this. */
const BUDGET_MS = 400;
/** Each costs a download of half a megabyte. */
const MOST_MEASURED = 4;
/** So many cores make a library's kernels as fast as one library after the other. */
const CORES_OF_A_LIBRARY = 4;
/** Starts that go on with what there was no time for. */
const MOST_STARTS = 4;

const browser = (): Surroundings => ({
  gpu: globalThis.navigator?.gpu,
  store: globalThis.caches,
  userAgent: globalThis.navigator?.userAgent ?? "",
  cores: globalThis.navigator?.hardwareConcurrency ?? 1,
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
  const { text, isKept } = await keptProvenance(`${base}provenance.json`, get, around.store);
  return noted(await new Chooser(base, readLibraries(text), options, around, isKept).choose(adapter));
}

/** The same among libraries whose list somebody has read and checked; `base` is the folder of their files. */
export async function among(
  base: string,
  libraries: readonly WebLibrary[],
  adapter: JudgedAdapter | undefined,
  options: ChooseOptions,
  around: Surroundings = browser(),
): Promise<Choice> {
  return noted(await new Chooser(base, libraries, options, around, false).choose(adapter));
}

function noted(choice: Choice): Choice {
  counts.library = choice.name;
  counts.libraryReason = choice.why;
  return choice;
}

/** The device that is judged. */
interface Judged {
  traits: Traits;
  text: AdapterText;
  /** As the known-answer test is given it. */
  tested: AdapterText;
}

class Chooser {
  private readonly measured: Measured[] = [];
  private readonly files = new Map<string, LibraryFile>();
  private known: WrongLibraries | undefined;
  /** For which there was no time. */
  private late: string[] = [];
  /** Names of those that computed wrong now, or with which the device was lost. */
  private readonly faulty = new Set<string>();

  constructor(
    private readonly base: string,
    private readonly libraries: readonly WebLibrary[],
    private readonly options: ChooseOptions,
    private readonly around: Surroundings,
    /** Whether the package's server could not be reached. */
    private readonly isOffline: boolean,
  ) {}

  async choose(judged: JudgedAdapter | undefined): Promise<Choice> {
    const { library } = this.options;
    if (library !== undefined) return this.fixed(library);
    const adapter = judged ?? (await this.requestAdapter().catch(() => null));
    if (!adapter) throw new Error("WebGPU found no graphics device. Update the browser and the graphics driver.");
    const traits = traitsOf(adapter, this.around.gpu?.wgslLanguageFeatures, this.options.fast ?? false);
    const fitting = byExpectation(this.libraries.filter(({ needs }) => lacking(needs, traits).length === 0));
    if (fitting.length === 0) throw new Error(noneFits(this.libraries, traits));
    const on: Judged = { traits, text: textOf(adapter), tested: tested(adapter, traits) };
    const { store, userAgent } = this.around;
    const seen = { ...traits, features: [...traits.features], languageFeatures: [...traits.languageFeatures] };
    const kept = await KeptChoice.open(this.libraries, on.text, seen, userAgent, store);
    const before = this.options.measure === false ? undefined : await kept?.read(Date.now());
    if (this.isOffline && fitting.length > 1) return this.stored(fitting, before, on);
    const again = fitting.filter(({ name }) => name === before?.name);
    const [same] = await this.withoutKnownWrong(again, on);
    if (!before || !same || fitting.length === 1) return this.anew(fitting, on, kept);
    const left = fitting.filter(({ name }) => name !== same.name && before.left.includes(name));
    if (left.length === 0 || before.starts >= MOST_STARTS) return this.choice(same, before.why);
    return this.goOn(same, left, before, on, kept!).catch(() => this.anew(fitting, on, kept));
  }

  private async anew(fitting: WebLibrary[], on: Judged, kept: KeptChoice | undefined): Promise<Choice> {
    this.measured.length = 0;
    const usable = await this.withoutKnownWrong(fitting, on);
    const [best] = usable;
    if (!best) throw new Error(allWrong(this.measured, KNOWN_WRONG_HINT));
    if (usable === fitting && fitting.length === 1) return this.choice(best, onlyOne(this.libraries.length));
    if (usable.length === 1) return this.choice(best, `${LEFT}${problemsOf(this.measured)}`);
    if (this.options.measure === false) return this.choice(best, `${EXPECTED}: nothing was measured`);
    const found = await this.measureAll(usable, on);
    const isMeasured = this.isTimed(found.name);
    await kept?.write({ ...found, isMeasured, left: this.late, starts: 1 }, Date.now());
    return found;
  }

  /** There was no time for some at the last start: they are measured now, beside the one that was chosen. */
  private async goOn(
    same: WebLibrary,
    left: WebLibrary[],
    before: Kept,
    on: Judged,
    kept: KeptChoice,
  ): Promise<Choice> {
    const usable = [same, ...(await this.withoutKnownWrong(left, on))];
    const found = await this.measureAll(usable, on);
    // Times of different starts say nothing of each other.
    const isComparable = this.isTimed(same.name) || this.faulty.has(same.name) || !before.isMeasured;
    const isNew = this.isTimed(found.name) && isComparable;
    const { name, why } = isNew ? found : before;
    const isMeasured = isNew || before.isMeasured;
    await kept.write({ name, why, isMeasured, left: this.late, starts: before.starts + 1 }, Date.now());
    return isNew ? found : this.choice(same, before.why);
  }

  /** Without a network: one whose file is here, the one that was chosen before if it is. */
  private async stored(fitting: WebLibrary[], before: Kept | undefined, on: Judged): Promise<Choice> {
    const first = fitting.filter(({ name }) => name === before?.name);
    const usable = await this.withoutKnownWrong([...new Set([...first, ...fitting])], on);
    for (const library of usable) {
      const isHere = await isStored(this.base + library.file, this.around.store);
      if (!isHere) await this.load(library);
      if (!isHere && !this.files.has(library.name)) continue;
      return this.choice(library, library.name === before?.name ? before.why : STORED);
    }
    const [best] = usable;
    if (!best) throw new Error(allWrong(this.measured, KNOWN_WRONG_HINT));
    return this.choice(best, best.name === before?.name ? before.why : `${EXPECTED}: nothing was measured`);
  }

  private isTimed(wanted: string): boolean {
    return this.measured.some(({ name, microseconds }) => name === wanted && microseconds !== undefined);
  }

  /** Those that were not found wrong on this device before; the list itself where none was. */
  private async withoutKnownWrong(fitting: WebLibrary[], { tested }: Judged): Promise<WebLibrary[]> {
    const { store, userAgent } = this.around;
    this.known ??= await WrongLibraries.open(store, userAgent);
    if (!(await this.known?.areAny())) return fitting;
    const usable: WebLibrary[] = [];
    for (const library of fitting) {
      await this.load(library);
      const answers = this.answersOf(library);
      if (!answers || !(await this.known?.has(answers, tested))) usable.push(library);
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

  private async measureAll(fitting: WebLibrary[], { traits, text }: Judged): Promise<Choice> {
    const [best] = fitting as [WebLibrary];
    const small = fitting.filter((each) => fitting.some((other) => isSmallerThan(each, other)));
    const worthwhile = fitting.filter((each) => !small.includes(each)).slice(0, MOST_MEASURED);
    await Promise.all(worthwhile.map((library) => this.load(library)));
    const own = await this.requestAdapter().catch(() => null);
    if (!own || JSON.stringify(textOf(own)) !== JSON.stringify(text))
      return this.choice(best, `${EXPECTED}: the device could not be opened for a measurement`);
    const { now, cores } = this.around;
    const budget: Budget = { now, end: now() + BUDGET_MS };
    const opened = openMeasured(own, deviceDescriptor(traits));
    const device = await endsInTime(opened, budget);
    if (device === LATE) void opened.then((late) => late?.destroy());
    if (!device || device === LATE)
      return this.choice(best, `${EXPECTED}: the device could not be opened for a measurement`);
    const contest = new Contest(device, adapterOf(own), budget, Math.max(1, Math.floor(cores / CORES_OF_A_LIBRARY)));
    try {
      return await this.run(device, contest, fitting, worthwhile, budget, adapterOf(own));
    } finally {
      contest.end();
      device.destroy();
    }
  }

  private async run(
    device: GPUDevice,
    contest: Contest,
    fitting: WebLibrary[],
    worthwhile: WebLibrary[],
    budget: Budget,
    adapter: AdapterText,
  ): Promise<Choice> {
    const entrant = (library: WebLibrary) => ({ library, file: this.files.get(library.name) });
    await contest.enter(worthwhile.map(entrant));
    // What is smaller than a wrong one may be right.
    for (const library of fitting.filter((each) => !worthwhile.includes(each))) {
      if (contest.standings().length > 0 || contest.isOver) break;
      await this.load(library);
      await contest.enter([entrant(library)]);
    }
    await contest.compare();
    const standings = contest.standings();
    const failures = contest.failures();
    for (const { library, microseconds } of standings) this.measured.push({ name: library.name, microseconds });
    for (const { library, failure } of failures) this.measured.push({ name: library.name, problem: failure.message });
    const order = [...worthwhile, ...fitting].map(({ name }) => name);
    this.measured.sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));
    const isLate = ({ name }: WebLibrary) => !this.measured.some((each) => each.name === name);
    const late = failures.flatMap(({ library, failure }) => (failure.kind === "late" ? [library] : []));
    this.late = [...worthwhile.filter(isLate), ...late].map(({ name }) => name);
    const wrong = new Set<WebLibrary>();
    const found = async (library: WebLibrary, { kind }: Failure) => {
      if (kind === "wrong" || kind === "lost") this.faulty.add(library.name);
      if (kind !== "wrong") return;
      wrong.add(library);
      const answers = this.answersOf(library);
      if (answers) await this.known?.add(answers, testedAdapter(adapter, device.features));
    };
    for (const { library, failure } of failures) await found(library, failure);
    let isLost = false;
    for (const { library } of standings) {
      const problem = await this.checkWhole(device, library, isLost || contest.isOver, budget, adapter);
      if (problem?.kind !== "wrong" && problem?.kind !== "lost")
        return this.choice(library, whyOf(this.measured, library.name));
      isLost ||= problem.kind === "lost";
      await found(library, problem);
      this.note(library, problem.message);
    }
    const untested = fitting.filter((library) => !wrong.has(library));
    if (untested.length === 0) throw new Error(allWrong(this.measured));
    // With which the device was lost.
    const ends = new Set(failures.flatMap(({ library, failure }) => (failure.kind === "lost" ? [library] : [])));
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
      if (await passed?.has())
        return this.choice(library, `its results were right here before${problemsOf(this.measured)}`);
    }
    const calm = untested.filter((library) => !ends.has(library));
    const candidates = calm.length > 0 ? calm : untested;
    if (!isDoubtful && ends.size === 0) return this.choice(candidates[0]!, whyUntested(this.measured));
    return this.choice(candidates.at(-1)!, `asks least of the device${problemsOf(this.measured)}`);
  }

  /** The other kernels of the one that won, in the time that is left; the load tests them in any case. */
  private async checkWhole(
    device: GPUDevice,
    library: WebLibrary,
    isOver: boolean,
    budget: Budget,
    adapter: AdapterText,
  ): Promise<Failure | undefined> {
    return isOver ? undefined : check(device, this.files.get(library.name)!, adapter, budget);
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
