// The dialog: the conversation's system prompt, sampling, looks, and what is stored.
import type { Session } from "../chat/session";
import { removeAllPackages, removePackage, storedPackages } from "../download/cache";
import { describeOffline } from "../offline";
import type { BeginningsWish } from "../package/beginnings";
import type { TableWish } from "../package/package";
import { forgotten } from "../package/trust";
import { formatBytes } from "../package/units";
import { inWords } from "../package/user_error";
import { byId, h } from "./dom";
import { describeBeginnings, describeDrafts, describeFast, describeLibrary, describeTable } from "./fast_state";
import { ProfilePanel } from "./profile";
import { setUpSettingsNav } from "./settings_nav";
import { applyTheme, type Theme } from "./theme";
import { TransferButtons } from "./transfer";

interface NumberField {
  id: string;
  key: "temperature" | "topP" | "repetitionPenalty" | "maxTokens" | "seed";
  /** What holds while the field is empty. */
  standard: (session: Session) => string;
}

const NUMBERS: NumberField[] = [
  { id: "temperature", key: "temperature", standard: ({ pack }) => String(pack?.sampling.temperature ?? 1) },
  { id: "top-p", key: "topP", standard: ({ pack }) => String(pack?.sampling.topP ?? 1) },
  { id: "repetition", key: "repetitionPenalty", standard: ({ pack }) => String(pack?.sampling.repetitionPenalty ?? 1) },
  { id: "max-tokens", key: "maxTokens", standard: () => "no limit" },
  { id: "seed", key: "seed", standard: () => "random" },
];

export interface SettingsActions {
  /** The files of a package, or of all, are about to be removed: ends when nothing writes any more. */
  removing(url?: string): Promise<void>;
  /** They were. */
  removed(url: string): void;
  /** What the package would need may have changed. */
  changed(): void;
  review(): void;
  choose(): void;
}

export class SettingsDialog {
  private readonly dialog = byId<HTMLDialogElement>("settings");
  private readonly system = byId<HTMLTextAreaElement>("system");
  private readonly systemDefault = byId<HTMLInputElement>("system-default");
  private readonly fast = byId<HTMLInputElement>("fast");
  private readonly drafts = byId<HTMLInputElement>("drafts");
  private readonly table = byId<HTMLSelectElement>("table");
  private readonly beginnings = byId<HTMLSelectElement>("beginnings");
  private readonly transfer: TransferButtons;
  private readonly profile: ProfilePanel;
  private readonly showBeginning = setUpSettingsNav();

  constructor(
    private readonly session: Session,
    private readonly actions: SettingsActions,
  ) {
    const leave = (id: string, go: () => void) =>
      byId(id).addEventListener("click", () => {
        this.dialog.close();
        go();
      });
    leave("change-model", () => actions.review());
    leave("other-model", () => actions.choose());
    byId("open-settings").addEventListener("click", () => void this.open());
    byId("close-settings").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // outside of the box
    });
    this.system.addEventListener("input", () => this.keepSystem());
    this.systemDefault.addEventListener("change", () => this.keepSystem());
    for (const field of NUMBERS) {
      const input = byId<HTMLInputElement>(field.id);
      input.addEventListener("change", () => this.keepNumber(field, input));
    }
    byId("reset-sampling").addEventListener("click", () => {
      for (const { key } of NUMBERS) session.changeSettings({ [key]: undefined });
      this.fillNumbers();
    });
    for (const input of this.dialog.querySelectorAll<HTMLInputElement>('input[name="theme"]')) {
      input.addEventListener("change", () => {
        session.changeSettings({ theme: input.value as Theme });
        applyTheme(input.value as Theme);
      });
    }
    this.fast.addEventListener("change", () => {
      session.changeSettings({ fast: this.fast.checked });
      this.showFast();
    });
    this.drafts.addEventListener("change", () => {
      session.changeSettings({ drafts: this.drafts.checked });
      this.showFast();
    });
    this.table.addEventListener("change", () => {
      session.changeSettings({ table: this.table.value as TableWish });
      this.showFast();
      actions.changed();
    });
    this.beginnings.addEventListener("change", () => {
      session.changeSettings({ beginnings: this.beginnings.value as BeginningsWish });
      if (session.settings.beginnings === "off") session.forgetBeginnings();
      this.showFast();
      actions.changed();
    });
    this.transfer = new TransferButtons(session);
    this.profile = new ProfilePanel(session);
    this.setUpClearing();
  }

  async open(): Promise<void> {
    const { session } = this;
    this.system.value = session.current.system;
    this.systemDefault.checked = Boolean(session.settings.system) && session.settings.system === session.current.system;
    this.fillNumbers();
    for (const input of this.dialog.querySelectorAll<HTMLInputElement>('input[name="theme"]')) {
      input.checked = input.value === session.settings.theme;
    }
    this.fast.checked = session.settings.fast;
    this.drafts.checked = session.settings.drafts;
    this.table.value = session.settings.table;
    this.beginnings.value = session.settings.beginnings;
    this.showFast();
    this.transfer.show();
    this.profile.show();
    this.dialog.showModal();
    this.showBeginning();
    await this.fillStorage();
  }

  private keepSystem(): void {
    this.session.change({ system: this.system.value });
    this.session.changeSettings({ system: this.systemDefault.checked ? this.system.value : "" });
  }

  private keepNumber({ key }: NumberField, input: HTMLInputElement): void {
    if (!input.reportValidity()) return;
    this.session.changeSettings({ [key]: input.value === "" ? undefined : Number(input.value) });
  }

  private fillNumbers(): void {
    for (const { id, key, standard } of NUMBERS) {
      const input = byId<HTMLInputElement>(id);
      input.value = String(this.session.settings[key] ?? "");
      input.placeholder = standard(this.session);
    }
  }

  private showFast(): void {
    const { engine, pack } = this.session;
    byId("fast-state").textContent = describeFast(engine?.fast, this.fast.checked);
    // Drafts are a part of fast decoding.
    this.drafts.disabled = !this.fast.checked;
    const wanted = this.fast.checked && this.drafts.checked;
    byId("library-state").textContent = describeLibrary(pack);
    byId("drafts-state").textContent = describeDrafts(engine?.fast, pack, wanted);
    this.table.disabled = !this.fast.checked;
    byId("table-state").textContent = describeTable(engine?.fast, pack, this.table.value as TableWish);
    this.beginnings.disabled = !this.fast.checked;
    const kept = describeBeginnings(engine?.fast, pack, this.beginnings.value as BeginningsWish);
    byId("beginnings-state").textContent = kept;
  }

  private async fillStorage(): Promise<void> {
    await this.describeStorage().catch((error: unknown) => this.failed(error));
  }

  private failed(error: unknown): void {
    const { message, hint } = inWords(error);
    byId("storage").textContent = `${message} ${hint}`;
  }

  private async describeStorage(): Promise<void> {
    const { usage, quota } = (await navigator.storage?.estimate?.()) ?? {};
    const lasts = await navigator.storage?.persisted?.();
    byId("storage").textContent =
      usage === undefined || quota === undefined
        ? "This browser does not report what is stored."
        : `${formatBytes(usage)} stored of ${formatBytes(quota)} that the browser allows. ` +
          (lasts ? "It is kept until you remove it." : "The browser may remove it when the disk gets full.");
    const media = await this.session.mediaSize();
    byId("media-storage").textContent = media.count
      ? `Of it in chats: ${media.count === 1 ? "1 picture or sound" : `${media.count} pictures and sounds`} with ${formatBytes(media.bytes)}.`
      : "";
    const describePage = async (): Promise<void> => {
      byId("page-storage").textContent = await describeOffline();
    };
    await describePage();
    void navigator.serviceWorker?.ready.then(describePage, () => undefined); // it may be kept only now
    const folders = await storedPackages();
    byId("stored").replaceChildren(
      ...folders.map((url) =>
        h(
          "li",
          {},
          h("span", { class: "address" }, url),
          h(
            "button",
            {
              type: "button",
              class: "quiet",
              "aria-label": `Remove ${url}`,
              onclick: () => void this.remove(url).catch((error) => this.failed(error)),
            },
            "Remove",
          ),
        ),
      ),
    );
    byId<HTMLButtonElement>("clear-models").hidden = folders.length === 0;
  }

  private async remove(url: string): Promise<void> {
    await this.actions.removing(url);
    this.session.changeSettings(forgotten(this.session.settings, url));
    await removePackage(url);
    this.actions.removed(url);
    await this.fillStorage();
  }

  private async removeAll(): Promise<void> {
    await this.actions.removing();
    this.session.changeSettings({ accepted: [], known: [], agreed: {} });
    await removeAllPackages();
    if (this.session.pack) this.actions.removed(this.session.pack.url);
    await this.fillStorage();
  }

  private setUpClearing(): void {
    byId("clear-models").addEventListener("click", () => void this.removeAll().catch((error) => this.failed(error)));
    const all = byId<HTMLButtonElement>("clear-chats");
    const label = all.lastChild!; // after the icon
    const text = label.textContent;
    let sure = false;
    all.addEventListener("click", () => {
      if (sure) void this.session.removeAll().then(() => this.dialog.close());
      sure = !sure;
      label.textContent = sure ? "Really delete all chats" : text;
    });
    this.dialog.addEventListener("close", () => {
      sure = false;
      label.textContent = text;
    });
  }
}
