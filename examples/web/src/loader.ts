// From an address to a model that answers: what the package needs, the download, the engine, and how each may fail.
import type { Session } from "./chat/session";
import { isKept, storedPackages } from "./download/cache";
import { keepAwake } from "./download/awake";
import { download } from "./download/download";
import { reporter, type Shown } from "./download/report";
import { Engine } from "./engine/engine";
import type { EngineLost } from "./engine/failures";
import { startingText, withoutDrafts, withoutStorage } from "./engine/start_words";
import { AtWork, lastEnd, type Work } from "./engine/last_end";
import { Ownership } from "./engine/ownership";
import { packageUrl } from "./package/address";
import { beginningsFor } from "./package/beginnings";
import { checkOf } from "./package/check";
import { findAdapter, findDevice, NoWebGpu } from "./package/device";
import { choose } from "./package/libraries";
import { type Offer, offeredModels } from "./package/models";
import { readPackage, withoutDrafter, type Package } from "./package/package";
import type { Device } from "./package/requirements";
import { withTable } from "./package/table";
import { isOwn, knows, remembered } from "./package/trust";
import { MIB } from "./package/units";
import { inWords, UserError } from "./package/user_error";
import { afterPatience } from "./patience";
import type { StartState } from "./view/start";

/** So little that nobody has to be asked. */
const SMALL_BYTES = 64 * MIB;
const PAUSED = "paused";
/** A second loss of the device within this time is not answered by starting again. */
const CALM_MS = 60_000;

/**
 * Who names a package: the person, now or at an earlier visit, whoever put the page there, or whoever wrote a link to it.
 *
 * A link and an earlier visit open by themselves what the person agreed to, as it was then.
 */
export type Chooser = "person" | "before" | "page" | "link";

export interface LoaderEvents {
  state(state: StartState): void;
  failed(error: unknown): void;
  /** The list beside the page, which was read. */
  offered(offer: Offer): void;
}

export class Loader {
  private whole: Package | undefined;
  /** The same, without its drafter where that is not wanted. */
  private pack: Package | undefined;
  private address = "";
  private chooser: Chooser = "person";
  private digest: string | undefined;
  private device: Device | undefined;
  private abort: AbortController | undefined;
  private hasOffer = false;
  /** Whether a package and what it needs are shown, which waits for a person. */
  private isChecked = false;
  /** Ends when what was begun last neither writes nor starts any more. */
  private loading: Promise<void> = Promise.resolve();
  private lostAt = -Infinity;
  /** The package that was asked for last. */
  private opened = 0;
  private endPatience: () => void = () => undefined;
  /** What a page was at when it ended last, if it was this package. */
  private ended: Work | undefined;
  private readonly atWork = new AtWork();
  private readonly ownership = new Ownership(() => this.onTaken());

  constructor(
    private readonly session: Session,
    private readonly outside: LoaderEvents,
  ) {}

  /** Tells what is shown from now on. */
  private readonly events: LoaderEvents = {
    state: (state) => {
      this.isChecked = state.kind === "check";
      this.endPatience();
      if (state.kind === "busy" || state.kind === "progress")
        this.endPatience = afterPatience(() => this.outside.state({ ...state, isLate: true }));
      this.outside.state(state);
    },
    failed: (error) => this.outside.failed(error),
    offered: (offer) => this.outside.offered(offer),
  };

  /** Shows the field for an address. */
  async choose(): Promise<void> {
    this.opened += 1;
    this.unload();
    this.ownership.give();
    await this.attempt(async () => {
      await findAdapter(); // is there one?
      const [stored, offer] = await Promise.all([storedPackages(), offeredModels(document.baseURI)]);
      this.events.state({ kind: "choose", stored, offer });
      this.hasOffer = true;
      this.events.offered(offer);
    }, "");
  }

  /**
   * Reads a package, and goes on as far as nobody has to be asked.
   *
   * Another host's package that a link or an earlier visit names is asked about first. `digest`: of the package that the person agreed to.
   */
  async open(address: string, chooser: Chooser = "person", digest?: string): Promise<void> {
    this.unload();
    this.address = address;
    this.chooser = chooser;
    this.digest = digest;
    const number = ++this.opened;
    const isOver = () => number !== this.opened; // another one was asked for, or this one again
    await this.attempt(
      async () => {
        this.events.state({ kind: "busy", text: "Looking at the package and the graphics device…" });
        this.device = await findDevice(this.session.settings.fast);
        const url = packageUrl(address, document.baseURI);
        const isHere = await isKept(url);
        const ended = lastEnd(url);
        this.ended = ended && !(await this.ownership.isElsewhere()) ? ended : undefined; // another tab may be at it now
        const asks = chooser === "link" || chooser === "before" ? chooser : undefined;
        const isAgreed = (read: Package) =>
          digest === undefined ? !asks || knows(this.session.settings, read, isHere) : read.digest === digest;
        const pack = await readPackage(url, isAgreed);
        if (isOver()) return;
        if (!isAgreed(pack)) {
          const before = digest ?? this.session.settings.agreed[url];
          const isChanged = before !== undefined && before !== pack.digest;
          this.events.state({ kind: "stranger", pack, why: isChanged ? "changed" : (asks ?? "before") });
          return;
        }
        const whole = await this.chosen(pack);
        if (isOver()) return;
        this.whole = whole;
        const { totalBytes, requirements } = await this.wanted();
        if (isOver()) return;
        if (chooser !== "link" || isOwn(pack)) this.session.changeSettings({ lastPackage: url });
        if (chooser === "person" && !isOwn(pack)) this.session.changeSettings(remembered(this.session.settings, pack));
        if (isOwn(pack) && !pack.offline) void this.readOffer(); // whose server has just answered
        const small = Math.max(totalBytes, requirements.weightsBytes) <= SMALL_BYTES;
        await this.check(small || (isHere && this.session.settings.accepted.includes(url)));
      },
      "Try again",
      isOver,
    );
  }

  /** Once: what else there is beside the page, to change to. */
  private async readOffer(): Promise<void> {
    if (this.hasOffer) return;
    this.hasOffer = true;
    this.events.offered(await offeredModels(document.baseURI));
  }

  /** The package with the library for this device, or the one that the person fixed. */
  private async chosen(read: Package): Promise<Package> {
    const { pack, choice } = await choose(read, this.device!, this.session.settings.libraries[read.url]);
    return { ...pack, choice };
  }

  /** The package as the settings want it now. */
  private async wanted(): Promise<Package> {
    const { settings } = this.session;
    const whole = this.whole!;
    const drafted = settings.fast && settings.drafts ? whole : withoutDrafter(whole);
    const context = this.context(drafted);
    const placed = await withTable(drafted, settings, context);
    const pack = { ...placed, beginnings: beginningsFor(placed, settings, this.device!, context) };
    if (this.whole === whole) this.pack = this.session.pack = pack; // else another one was opened meanwhile
    return pack;
  }

  /** What fits and what does not; goes on where all fits and nobody has to be asked. */
  private async check(goOn: boolean): Promise<void> {
    const pack = await this.wanted();
    const shown = await checkOf(pack, this.device!, this.session.settings, this.context(pack), this.ended);
    if (goOn && shown.findings.every((finding) => finding.kind === "fits")) return this.load();
    this.events.state(shown);
  }

  /** Unloads the model and shows what it needs, with the choice of context and memory. */
  async review(): Promise<void> {
    if (!this.pack || !this.device) return this.choose();
    this.unload();
    await this.attempt(() => this.check(false), "Try again");
  }

  setContext(tokens: number): void {
    const { settings } = this.session;
    this.session.changeSettings({ context: { ...settings.context, [this.pack!.url]: tokens } });
    void this.check(false);
  }

  setAllowed(bytes: number): void {
    this.session.changeSettings({ allowedMemory: bytes });
    void this.check(false);
  }

  /** The settings changed: what is shown of a package that waits for a start may be another. */
  changed(): void {
    if (this.isChecked) void this.attempt(() => this.check(false), "Try again");
  }

  /** Fixes a library of the package, or leaves the choice to the page again. */
  setLibrary(name: string | undefined): void {
    const { [this.pack!.url]: _, ...others } = this.session.settings.libraries;
    const libraries = name === undefined ? others : { ...others, [this.pack!.url]: name };
    this.session.changeSettings({ libraries });
    void this.attempt(async () => {
      this.device = await findDevice(this.session.settings.fast);
      this.whole = await this.chosen(this.whole!);
      await this.check(false);
    }, "Try again");
  }

  /** The person agreed to the download. */
  async start(): Promise<void> {
    const { settings } = this.session;
    const { url } = this.pack!;
    this.session.changeSettings({ accepted: [...new Set([...settings.accepted, url])] });
    // Where the browser asks, this is the moment; a refusal only means that it may clean up. Firefox asks the person, who may
    // not see the question: nothing waits for the answer.
    navigator.storage?.persist?.().catch(() => undefined);
    await this.attempt(() => this.load(), "Try again");
  }

  /** What takes memory begins, or ends. */
  works(kind: Work["kind"] | undefined): void {
    if (kind && this.pack) this.atWork.begin(this.pack, this.context(this.pack), kind);
    else this.atWork.end();
  }

  pause(): void {
    this.abort?.abort(PAUSED);
  }

  async retry(): Promise<void> {
    if (this.address) await this.open(this.address, this.chooser, this.digest);
    else await this.choose();
  }

  async takeOver(): Promise<void> {
    await this.ownership.take(true);
    await this.retry();
  }

  /** The files of a package, or of all, are about to be removed: ends when this tab writes none of them any more. */
  async removing(url?: string): Promise<void> {
    if (this.session.engine || (url !== undefined && this.pack?.url !== url)) return;
    this.abort?.abort();
    await this.loading;
  }

  /** The files of a package were removed while it may be in use. */
  removed(url: string): void {
    if (this.pack?.url !== url || this.session.engine) return;
    // Nobody agrees anew by that.
    if (this.chooser === "link") void this.open(url, "link");
    else void this.open(url, "page", this.pack.digest);
  }

  /** A smaller context than the package's, if one was chosen. */
  private context(pack: Package): number {
    const chosen = this.session.settings.context[pack.url] ?? pack.contextLength;
    return Math.min(chosen, pack.contextLength);
  }

  private load(): Promise<void> {
    const abort = new AbortController();
    this.abort = abort;
    const load = this.downloadAndStart(abort.signal);
    this.loading = load.catch(() => undefined);
    return load;
  }

  private async downloadAndStart(signal: AbortSignal): Promise<void> {
    const checking = { kind: "progress", title: `Checking ${this.whole!.title}`, share: 0, text: "" } as const;
    this.events.state({ ...checking, pausable: true }); // at once: a model that was lost is not ready any more
    const pack = await this.wanted();
    if (signal.aborted) return this.onEnded(signal); // this tab may have given the model away
    if (!(await this.ownership.take())) {
      this.events.state({ kind: "elsewhere" });
      return;
    }
    if (signal.aborted) return this.onEnded(signal);
    const sleep = keepAwake();
    let isDownloading = true;
    let missing: UserError | undefined;
    try {
      const show = (shown: Shown) => this.events.state({ kind: "progress", ...shown, pausable: true });
      const isShown = () => isDownloading && !signal.aborted;
      missing = await download(pack, reporter(pack.title, show, isShown), signal);
    } catch (error) {
      if (!signal.aborted) throw error;
      return this.onEnded(signal);
    } finally {
      isDownloading = false;
      sleep();
    }
    const starting = (share: number, detail: string) =>
      this.events.state({
        kind: "progress",
        title: "Starting the model",
        share,
        text: startingText(detail),
        pausable: false,
      });
    starting(0, "");
    let engine: Engine | undefined;
    const { fast } = this.session.settings;
    const unsaved = (why: string) => this.events.failed(withoutStorage(why));
    const options = { context: this.context(pack), fast, drafts: !missing, signal, unsaved };
    this.ended = undefined;
    this.works("starting");
    try {
      engine = await Engine.start(pack, options, starting, (error) => this.onLost(error, engine));
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      this.works(undefined);
    }
    if (signal.aborted || !engine) {
      engine?.dispose();
      return this.onEnded(signal);
    }
    this.session.engine = engine;
    this.events.state({ kind: "ready" });
    if (missing) this.events.failed(withoutDrafts(missing));
  }

  /** Somebody ended the load: another package or another tab shows itself. */
  private onEnded(signal: AbortSignal): void {
    if (signal.reason !== PAUSED) return;
    this.events.state({
      kind: "failed",
      title: "The download is paused.",
      hint: "What has arrived is kept.",
      retry: "Go on",
    });
  }

  /** The conversation stays; the model starts again by itself, unless it has just done so. */
  private onLost(error: EngineLost, engine: Engine | undefined): void {
    if (!engine || this.session.engine !== engine) return; // while it starts: `load` reports it
    this.session.engine = undefined;
    engine.dispose();
    if (document.hidden) {
      this.startWhenShown(error);
      return;
    }
    const calm = performance.now() - this.lostAt > CALM_MS;
    this.lostAt = performance.now();
    if (!calm) {
      this.events.state({ kind: "failed", title: error.message, hint: error.hint, retry: "Start again" });
      return;
    }
    this.events.failed(
      new UserError(
        error.message,
        "The model starts again. The conversation is kept; write the answer again when it is there.",
      ),
    );
    void this.attempt(() => this.load(), "Start again");
  }

  /** A tab that nobody looks at starts nothing: a phone would end it again, and others have use for the memory. */
  private startWhenShown({ message, hint }: EngineLost): void {
    const waiting = new AbortController();
    this.abort = waiting;
    this.events.state({ kind: "failed", title: message, hint, retry: "Start again" });
    const options = { once: true, signal: waiting.signal };
    document.addEventListener("visibilitychange", () => void this.attempt(() => this.load(), "Start again"), options);
  }

  private onTaken(): void {
    this.unload();
    this.events.state({ kind: "elsewhere" });
  }

  private unload(): void {
    this.abort?.abort();
    this.session.engine?.dispose();
    this.session.engine = undefined;
  }

  private async attempt(action: () => Promise<void>, retry: string, isOver = () => false): Promise<void> {
    try {
      await action();
    } catch (error) {
      if (isOver()) return;
      if (error instanceof NoWebGpu) {
        this.events.state({ kind: "no-webgpu", error });
        return;
      }
      const { message, hint } = inWords(error);
      this.events.state({ kind: "failed", title: message, hint, retry: retry || "Try again" });
    }
  }
}
