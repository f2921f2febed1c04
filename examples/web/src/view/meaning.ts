// Search by meaning: its model and documents in the settings, and what is found under the list of chats.
import type { Session } from "../chat/session";
import type { MeaningLoader, MeaningState } from "../meaning_loader";
import { firstOf } from "../chat/transcript";
import { inWords } from "../package/user_error";
import { formatCount } from "../package/units";
import { byId, h } from "./dom";

const LONGEST_SHOWN = 160;
const PAUSE_MS = 300; // while somebody types

export class MeaningView {
  private readonly query = byId<HTMLInputElement>("search");
  private readonly address = byId<HTMLInputElement>("embedder");
  private readonly files = byId<HTMLInputElement>("document-files");
  private readonly list = byId("meanings");
  private loader: MeaningLoader | undefined;
  private asked = 0;
  private pause: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly session: Session) {
    byId("check-embedder").addEventListener("click", () => void this.check());
    byId("start-embedder").addEventListener("click", () => void this.loader?.start());
    byId("stop-embedder").addEventListener("click", () => this.loader?.stop());
    byId("add-documents").addEventListener("click", () => this.files.click());
    this.files.addEventListener("change", () => {
      const files = [...(this.files.files ?? [])];
      void this.add(files).finally(() => (this.files.value = "")); // the same file may come again
    });
    const box = byId("meaning-settings");
    box.addEventListener("dragover", (event) => event.preventDefault());
    box.addEventListener("drop", (event) => {
      event.preventDefault();
      void this.add([...(event.dataTransfer?.files ?? [])]);
    });
    this.query.addEventListener("input", () => {
      clearTimeout(this.pause);
      this.pause = setTimeout(() => void this.find(), PAUSE_MS);
    });
  }

  /** From now on `loader` is asked. */
  async use(loader: MeaningLoader): Promise<void> {
    this.loader = loader;
    this.address.value = this.session.settings.embedder;
    await this.showDocuments();
  }

  show(state: MeaningState): void {
    byId("start-embedder").hidden = state.kind !== "check" || state.findings.some(({ kind }) => kind === "blocks");
    byId("stop-embedder").hidden = state.kind !== "ready" && state.kind !== "busy";
    byId("embedder-error").replaceChildren();
    const findings = state.kind === "check" ? state.findings : [];
    byId("embedder-needs").replaceChildren(
      ...findings.map(({ kind, text, hint }) =>
        h("li", { class: kind }, text, Boolean(hint) && h("span", { class: "hint" }, ` ${hint}`)),
      ),
    );
    byId("embedder-state").textContent = textOf(state);
    if (state.kind !== "busy") void this.find();
  }

  fail(error: unknown): void {
    const { message, hint } = inWords(error);
    byId("embedder-error").replaceChildren(h("p", {}, message), h("p", {}, hint));
  }

  private async check(): Promise<void> {
    if (this.address.value.trim()) await this.loader?.check(this.address.value);
  }

  private async add(files: File[]): Promise<void> {
    byId("embedder-error").replaceChildren();
    try {
      await this.loader?.addDocuments(files);
    } catch (error) {
      this.fail(error);
    }
    await this.showDocuments();
  }

  private async showDocuments(): Promise<void> {
    const documents = (await this.loader?.documents()) ?? [];
    byId("documents").replaceChildren(
      ...documents.map(({ id, name }) => {
        const remove = () => void this.loader!.removeDocument(id).then(() => this.showDocuments());
        const label = `Remove ${name}`;
        return h(
          "li",
          {},
          h("span", { class: "address", dir: "auto" }, name),
          h("button", { type: "button", class: "quiet", "aria-label": label, onclick: remove }, "Remove"),
        );
      }),
    );
  }

  /** Shows what is nearest to the words in the field; the last question alone is answered. */
  private async find(): Promise<void> {
    const asked = ++this.asked;
    const text = this.query.value.trim();
    const isAsked = text !== "" && this.loader?.isReady === true;
    byId("meaning-box").hidden = !isAsked;
    if (!isAsked) return this.list.replaceChildren();
    const progress = byId("meaning-state");
    try {
      const found = await this.loader!.find(text, (done, all) => {
        progress.textContent = `Reading ${formatCount(done)} of ${formatCount(all)} passages…`;
      });
      if (asked !== this.asked) return;
      progress.textContent = found.length ? "" : "There is nothing to search yet.";
      this.list.replaceChildren(
        ...found.map(({ title, text: passage, conversation }) => {
          const shown = passage.length > LONGEST_SHOWN ? `${firstOf(passage, LONGEST_SHOWN)}…` : passage;
          const parts = [
            h("span", { class: "title", dir: "auto" }, title),
            h("span", { class: "snippet", dir: "auto" }, shown),
          ];
          if (conversation === undefined) return h("li", { title: passage }, h("p", { class: "open" }, ...parts));
          const onclick = () => this.session.select(conversation);
          return h("li", {}, h("button", { type: "button", class: "open", onclick }, ...parts));
        }),
      );
    } catch (error) {
      if (asked === this.asked) progress.textContent = inWords(error).message;
    }
  }
}

function textOf(state: MeaningState): string {
  if (state.kind === "busy") return state.text;
  if (state.kind === "ready") return `${state.title} searches chats and documents.`;
  return "";
}
