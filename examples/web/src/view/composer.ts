// The field for the next message, and the switches of the conversation.
import type { Session } from "../chat/session";
import { Attachments } from "./attachments";
import { byId } from "./dom";
import { isComposing } from "./keys";
import { showError } from "./notices";
import { sampleFile, type Suggestion } from "./suggestions";

// What is being written outlives a reload of the tab.
const DRAFT = "gemma4-draft";

export class Composer {
  readonly field = byId<HTMLTextAreaElement>("prompt");
  private readonly form = byId<HTMLFormElement>("composer");
  private readonly send = byId<HTMLButtonElement>("send");
  private readonly stop = byId<HTMLButtonElement>("stop");
  private readonly thinking = byId<HTMLButtonElement>("thinking");
  private readonly tools = byId<HTMLButtonElement>("tools");
  private readonly attachments: Attachments;

  constructor(
    private readonly session: Session,
    private readonly editLast: () => boolean,
    announce: (text: string) => void,
  ) {
    this.attachments = new Attachments(session, { changed: () => this.show(), announce });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.field.addEventListener("keydown", (event) => this.onKey(event));
    this.field.value = sessionStorage.getItem(DRAFT) ?? "";
    this.field.addEventListener("input", () => {
      sessionStorage.setItem(DRAFT, this.field.value);
      this.show();
    });
    this.stop.addEventListener("click", () => this.session.stop());
    this.thinking.addEventListener("click", () => {
      this.session.change({ thinking: !this.session.current.thinking });
      this.show();
    });
    this.tools.addEventListener("click", () => {
      this.session.change({ tools: !this.session.current.tools });
      this.show();
    });
  }

  show(): void {
    const { session, field } = this;
    const ready = session.engine !== undefined;
    const { busy } = session;
    // The focus must not fall to the page when the button that has it disappears.
    const hadFocus = document.activeElement === this.send || document.activeElement === this.stop;
    this.send.hidden = busy;
    this.stop.hidden = !busy;
    this.send.disabled = !ready || !this.isWritten;
    if (hadFocus) field.focus();
    field.placeholder = ready ? "Message" : "Write while the model loads";
    this.attachments.show();
    this.thinking.hidden = !session.pack?.thinks;
    this.tools.hidden = !session.pack?.usesTools;
    this.thinking.setAttribute("aria-pressed", String(session.current.thinking));
    this.tools.setAttribute("aria-pressed", String(session.current.tools));
  }

  /** Whether there is something to send, and all of it is there. */
  private get isWritten(): boolean {
    const { attachments, field } = this;
    return !attachments.isBusy && (field.value.trim() !== "" || attachments.count > 0);
  }

  private submit(): void {
    const text = this.field.value.trim();
    if (!this.isWritten || this.session.busy || !this.session.engine) return;
    this.field.value = "";
    sessionStorage.removeItem(DRAFT);
    void this.session.ask(text, this.attachments.take());
    this.show();
  }

  /** Asks what an empty chat offers; what is being written stays. */
  async suggest({ text, sample }: Suggestion): Promise<void> {
    try {
      const media = sample ? await this.attachments.read(await sampleFile(sample)) : [];
      if (!this.session.busy) await this.session.ask(text, media);
    } catch (error) {
      showError(error);
    }
  }

  private onKey(event: KeyboardEvent): void {
    if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) {
      event.preventDefault();
      this.submit();
    } else if (event.key === "ArrowUp" && !this.field.value) {
      if (this.editLast()) event.preventDefault();
    }
  }
}
