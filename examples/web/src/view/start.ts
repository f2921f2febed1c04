// The content in place of the chat until there is a model: choosing a package, what it needs, the
// download, and every way in which that can fail.
import { drafterBytes, type Package } from "../package/package";
import type { NoWebGpu } from "../package/device";
import type { Finding } from "../package/requirements";
import { type Numerics, numericsLines } from "../package/numerics";
import { modelLine, type Offer, type OfferedModel } from "../package/models";
import { formatBytes, formatCount, GIB } from "../package/units";
import { byId, h } from "./dom";
import { describeLibrary, describeTable } from "./fast_state";
import { icon } from "./icons";

export type StartState =
  | { kind: "choose"; stored: string[]; offer: Offer }
  /** `isLate`: nothing new has come for a while. */
  | { kind: "busy"; text: string; isLate?: boolean }
  | { kind: "stranger"; pack: Package; why: keyof typeof QUESTIONS }
  | {
      kind: "check";
      pack: Package;
      findings: Finding[];
      missing: number;
      contexts: number[];
      context: number;
      allowed: number;
      /** That take less memory, where it may be short. */
      smaller: OfferedModel[];
    }
  | { kind: "progress"; title: string; share: number; text: string; pausable: boolean; isLate?: boolean }
  | { kind: "failed"; title: string; hint: string; retry: string }
  | { kind: "no-webgpu"; error: NoWebGpu }
  | { kind: "elsewhere" }
  | { kind: "ready" };

export interface StartActions {
  open(address: string): void;
  /** Opens a package that the page asked about, if it is still the one with this hash. */
  trust(url: string, digest: string): void;
  choose(): void;
  start(): void;
  pause(): void;
  retry(): void;
  takeOver(): void;
  setContext(tokens: number): void;
  setAllowed(bytes: number): void;
  /** undefined: the one that the page chooses. */
  setLibrary(name: string | undefined): void;
}

/** Above a package that nobody agreed to as it is. */
const QUESTIONS = {
  link: "A link wants to open a package",
  changed: "The package has changed meanwhile",
  before: "Open this package again?",
};

const ALLOWANCES = [0, 2, 4, 8, 16, 24, 48].map((gigabytes) => gigabytes * GIB);

export class StartView {
  private readonly box = byId("start");
  private shown: StartState = { kind: "ready" };

  constructor(private readonly actions: StartActions) {}

  show(state: StartState): void {
    const { shown } = this;
    this.shown = state;
    this.box.hidden = state.kind === "ready";
    this.box.dataset["kind"] = state.kind;
    const isDrawn = (before: Extract<StartState, { kind: "progress" }>, now: typeof before) =>
      before.pausable === now.pausable && before.isLate === now.isLate;
    if (state.kind === "progress" && shown.kind === "progress" && isDrawn(shown, state)) this.move(state);
    else this.box.replaceChildren(...this.draw(state));
  }

  private draw(state: StartState): HTMLElement[] {
    switch (state.kind) {
      case "choose":
        return this.drawChoose(state);
      case "busy":
        return [h("p", { class: "lead", id: "status", role: "status" }, state.text), ...this.late(state)];
      case "stranger":
        return this.drawStranger(state);
      case "check":
        return this.drawCheck(state);
      case "progress":
        return this.drawProgress(state);
      case "failed":
        return [
          h("h2", {}, icon("warning"), "That did not work"),
          h("div", { id: "error", role: "alert" }, h("p", {}, state.title), h("p", { class: "hint" }, state.hint)),
          this.buttons(state.retry, () => this.actions.retry()),
        ];
      case "no-webgpu":
        return [
          h("h2", {}, icon("blocked"), "The model cannot run here"),
          h(
            "div",
            { id: "error", role: "alert" },
            h("p", {}, state.error.message),
            h("p", {}, "What helps:"),
            h("ul", {}, ...state.error.ways.map((way) => h("li", {}, way))),
          ),
          h(
            "p",
            { class: "hint" },
            "Without a graphics device the model runs in a terminal: compile it with --target cpu, then gemma4-chat. " +
              "Your chats can be read here all the same.",
          ),
          this.buttons("Look again", () => this.actions.retry()),
        ];
      case "elsewhere":
        return [
          h("h2", {}, "The model is open in another tab"),
          h("p", { class: "hint" }, "Two at once would need the graphics memory twice."),
          this.buttons("Use it here", () => this.actions.takeOver()),
        ];
      case "ready":
        return [];
    }
  }

  private drawChoose({ stored, offer }: Extract<StartState, { kind: "choose" }>): HTMLElement[] {
    const field = h("input", {
      id: "package",
      type: "text",
      inputmode: "url",
      autocomplete: "url",
      autocapitalize: "none",
      spellcheck: "false",
      required: true,
      placeholder: "you/gemma-4-E2B-q4f16",
      "aria-describedby": "package-hint",
    });
    const form = h(
      "form",
      {
        id: "loader",
        onsubmit: (event: Event) => {
          event.preventDefault();
          this.actions.open(field.value);
        },
      },
      h("label", { for: "package" }, "A package: a model on Hugging Face, or an address"),
      h("div", { class: "row" }, field, h("button", { id: "load", type: "submit", class: "primary" }, "Open")),
      h(
        "p",
        { class: "hint", id: "package-hint" },
        "What gemma4-compile wrote with --target webgpu: owner/name or owner/name@revision of a model hub, " +
          "or a folder's address on any web server.",
      ),
    );
    const known = h(
      "ul",
      { class: "stored" },
      ...stored.map((url) =>
        h("li", {}, h("button", { type: "button", class: "link", onclick: () => this.actions.open(url) }, url)),
      ),
    );
    return [
      h("h2", {}, "Chat with a model that runs in this tab"),
      h("p", { class: "lead" }, "It is downloaded once and computes on this device. What you write stays here."),
      ...this.drawOffer(offer),
      form,
      ...(stored.length ? [h("h3", {}, "Downloaded"), known] : []),
    ];
  }

  /** The packages that this page offers; nothing where it offers none. */
  private drawOffer({ models, fault }: Offer): HTMLElement[] {
    if (fault) return [h("p", { class: "hint", id: "offer-fault" }, fault.message)];
    if (!models.length) return [];
    return [h("h3", {}, "Models"), this.drawModels("offer", models)];
  }

  private drawModels(id: string, models: OfferedModel[]): HTMLElement {
    const items = models.map((model) =>
      h(
        "li",
        {},
        h("button", { type: "button", class: "link", onclick: () => this.actions.open(model.address) }, model.name),
        h("span", { class: "hint" }, modelLine(model)),
      ),
    );
    return h("ul", { class: "stored", id }, ...items);
  }

  private drawStranger({ pack, why }: Extract<StartState, { kind: "stranger" }>): HTMLElement[] {
    const facts: [string, string][] = [
      ["Host", new URL(pack.url).host + (pack.redirectedTo ? `, which leads on to ${pack.redirectedTo}` : "")],
      ["Folder", pack.url],
      ["It calls itself", `${pack.title} · ${pack.recipe} · ${formatBytes(pack.totalBytes)}`],
      ["SHA-256 of its provenance.json", pack.digest],
    ];
    const go = h(
      "button",
      { id: "trust", type: "button", class: "primary", onclick: () => this.actions.trust(pack.url, pack.digest) },
      "Open it",
    );
    return [
      h("h2", {}, icon("warning"), QUESTIONS[why]),
      h(
        "p",
        { class: "lead" },
        "It does not come from this page's host, and nobody has checked its name. Its library runs in this tab, and its answers " +
          `are what its maker wants. Open it if you trust where ${why === "link" ? "the link came" : "it comes"} from.`,
      ),
      h(
        "dl",
        { class: "facts", dir: "ltr" },
        ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
      ),
      h("p", { class: "hint" }, "Then the page opens it by itself from now on, until you choose another package."),
      h("div", { class: "buttons" }, go, this.other()),
    ];
  }

  private drawCheck(state: Extract<StartState, { kind: "check" }>): HTMLElement[] {
    const { pack, findings, missing, contexts, context, allowed, smaller } = state;
    const blocked = findings.some((finding) => finding.kind === "blocks");
    const items = findings.map(({ kind, text, hint }) =>
      h(
        "li",
        { class: kind },
        icon(kind === "fits" ? "check" : kind === "risk" ? "warning" : "blocked"),
        h("div", {}, h("p", {}, text), hint ? h("p", { class: "hint" }, hint) : undefined),
      ),
    );
    const drafter = pack.drafter.size ? ` (${formatBytes(drafterBytes(pack))} of it its drafter)` : "";
    const label = missing ? `Download ${formatBytes(missing)}` : "Start";
    const go = h(
      "button",
      { id: "download", type: "button", class: "primary", onclick: () => this.actions.start() },
      label,
    );
    go.disabled = blocked;
    return [
      h("h2", {}, icon("chip"), pack.title),
      h("p", { class: "hint", dir: "ltr" }, pack.url),
      h(
        "p",
        { class: "lead" },
        `${pack.recipe} · ${formatBytes(pack.totalBytes)}${drafter} · ${formatCount(pack.contextLength)} tokens of context`,
      ),
      blocked
        ? h("ul", { class: "findings", id: "error", role: "alert" }, ...items)
        : h("ul", { class: "findings" }, ...items),
      ...(smaller.length ? [h("h3", {}, "Smaller models here"), this.drawModels("smaller", smaller)] : []),
      ...(pack.libraries.length > 1 ? [h("p", { class: "hint", id: "library-why" }, describeLibrary(pack))] : []),
      ...(pack.table?.place === "host"
        ? [
            h(
              "p",
              { class: "hint", id: "table-why" },
              `Per-layer embeddings: ${describeTable(undefined, pack, "auto")}`,
            ),
          ]
        : []),
      ...(pack.numerics ? [drawNumerics(pack.numerics)] : []),
      h(
        "div",
        { class: "fields" },
        choice(
          "context",
          "Context",
          contexts,
          context,
          (tokens) => `${formatCount(tokens)} tokens`,
          this.actions.setContext,
        ),
        choice(
          "allowed",
          "Graphics memory to use",
          ALLOWANCES,
          allowed,
          (bytes) => (bytes ? `at most ${bytes / GIB} GiB` : "what it needs"),
          this.actions.setAllowed,
        ),
        ...(pack.libraries.length > 1 ? [librarySelect(pack, this.actions.setLibrary)] : []),
      ),
      h("div", { class: "buttons" }, go, this.other()),
    ];
  }

  private drawProgress(state: Extract<StartState, { kind: "progress" }>): HTMLElement[] {
    const bar = h("progress", { id: "progress", max: "1", "aria-label": state.title });
    bar.value = state.share;
    const pause = h(
      "button",
      { id: "pause", type: "button", class: "quiet", onclick: () => this.actions.pause() },
      "Pause",
    );
    return [
      h("h2", { id: "progress-title" }, state.title),
      bar,
      h("p", { class: "lead numbers", id: "status" }, state.text),
      ...(state.pausable ? [h("div", { class: "buttons" }, pause)] : []),
      ...this.late(state),
    ];
  }

  /** What waits is not sure to end: a way out. */
  private late({ isLate }: { isLate?: boolean }): HTMLElement[] {
    if (!isLate) return [];
    const words =
      "Nothing new has come for a minute. It may go on by itself; if not, close other tabs of this page and try again.";
    return [
      h("p", { class: "hint", id: "late", role: "status" }, words),
      this.buttons("Try again", () => this.actions.retry()),
    ];
  }

  private move(state: Extract<StartState, { kind: "progress" }>): void {
    byId("progress-title").textContent = state.title;
    byId<HTMLProgressElement>("progress").value = state.share;
    byId("status").textContent = state.text;
  }

  private buttons(label: string, run: () => void): HTMLElement {
    const go = h("button", { id: "again", type: "button", class: "primary", onclick: run }, label);
    return h("div", { class: "buttons" }, go, this.other());
  }

  private other(): HTMLElement {
    return h("button", { type: "button", class: "quiet", onclick: () => this.actions.choose() }, "Another package");
  }
}

function choice(
  id: string,
  label: string,
  values: number[],
  chosen: number,
  name: (value: number) => string,
  onchange: (value: number) => void,
): HTMLElement {
  const select = h("select", { id, onchange: () => onchange(Number(select.value)) });
  for (const value of values) {
    const option = h("option", { value: String(value) }, name(value));
    option.selected = value === chosen;
    select.append(option);
  }
  return h("div", { class: "field" }, h("label", { for: id }, label), select);
}

/** The package's libraries to choose from; the first entry leaves the choice to the page. */
function librarySelect({ libraries, choice }: Package, onchange: (name: string | undefined) => void): HTMLElement {
  const select = h("select", { id: "library", onchange: () => onchange(select.value || undefined) });
  for (const name of ["", ...libraries.map((library) => library.name)]) {
    const option = h("option", { value: name }, name || "the fastest here");
    option.selected = choice?.isFixed ? name === choice.name : !name;
    select.append(option);
  }
  return h("div", { class: "field" }, h("label", { for: "library" }, "Library"), select);
}

/** How far the package is from its checkpoint, text by text. */
function drawNumerics(numerics: Numerics): HTMLElement {
  const { title, rows } = numericsLines(numerics);
  return h(
    "details",
    { id: "numerics" },
    h("summary", {}, title),
    h("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
  );
}
