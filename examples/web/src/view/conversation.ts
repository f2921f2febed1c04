// The messages of the open conversation, and staying at their end while a reply grows.
import { textOf } from "../chat/reply";
import type { Session } from "../chat/session";
import { mediaIdsOf, mediaOf, type AssistantMessage } from "../chat/transcript";
import { byId, copyText, h, placeChildren } from "./dom";
import { drawMedia, MediaUrls } from "./media";
import { MessageView, type MessageActions } from "./message";
import type { Suggestion } from "./suggestions";

const NEAR_END_PX = 80;

export class ConversationView {
  private readonly list = byId<HTMLOListElement>("messages");
  private readonly scroller = byId("scroller");
  private readonly jump = byId<HTMLButtonElement>("jump");
  private readonly live = byId("live");
  private views = new Map<string, MessageView>();
  private follows = true;
  private readonly urls = new MediaUrls((id) => this.session.mediaBlob(id));

  constructor(
    private readonly session: Session,
    private readonly suggestions: () => Suggestion[],
    private readonly suggest: (suggestion: Suggestion) => void,
  ) {
    this.scroller.addEventListener("scroll", () => this.noteScroll(), { passive: true });
    this.jump.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.follow()).observe(this.list);
    this.list.addEventListener("click", (event) => void this.copyCode(event));
  }

  private readonly actions: MessageActions = {
    regenerate: () => void this.session.regenerate(),
    edit: (id, text) => void this.session.edit(id, text),
    announce: (text) => this.announce(text),
    drawMedia: (message) => drawMedia(mediaOf(message), this.urls),
  };

  /** Shows the conversation as it is now, and its end. */
  show(): void {
    this.draw();
    this.toEnd();
  }

  /** Shows what another tab changed in it; who reads further up stays there. */
  refresh(): void {
    this.draw();
    for (const view of this.views.values()) view.draw();
    this.follow();
  }

  private draw(): void {
    const { current } = this.session;
    const views = new Map<string, MessageView>();
    const items: HTMLElement[] = [];
    current.messages.forEach((message, index) => {
      const last = index === current.messages.length - 1;
      const known = this.views.get(message.id);
      const view = known ?? new MessageView(message, this.actions, last);
      view.setLast(last);
      if (index === current.forgotten && index > 0) {
        items.push(h("li", { class: "forgotten" }, "The model no longer sees what is above"));
      }
      views.set(message.id, view);
      items.push(view.element);
    });
    this.views = views;
    this.urls.keepOnly(mediaIdsOf(current));
    placeChildren(this.list, items);
    this.showWelcome();
  }

  /** Offers questions in a chat without any. */
  showWelcome(): void {
    const welcome = byId("welcome");
    welcome.hidden = this.session.current.messages.length > 0 || !this.session.engine;
    if (welcome.hidden) return;
    byId("suggestions").replaceChildren(
      ...this.suggestions().map((suggestion) =>
        h("li", {}, h("button", { type: "button", onclick: () => this.suggest(suggestion) }, labelOf(suggestion))),
      ),
    );
  }

  /** A reply changed; the end of one is read out. */
  update(reply: AssistantMessage): void {
    const view = this.views.get(reply.id);
    if (!view) return;
    if (reply.state === "writing" && !document.hidden) {
      view.update();
      return;
    }
    view.draw();
    if (reply.state !== "writing") this.announce(textOf(reply) || "The answer is empty");
  }

  /** Opens the last question for editing. */
  editLast(): boolean {
    const last = this.session.current.messages.findLast((message) => message.role === "user");
    if (!last || this.session.busy) return false;
    this.views.get(last.id)?.startEdit();
    return true;
  }

  announce(text: string): void {
    this.live.textContent = text;
  }

  private noteScroll(): void {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    this.follows = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    this.jump.hidden = this.follows;
  }

  private follow(): void {
    if (this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.noteScroll();
  }

  private toEnd(): void {
    this.follows = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.jump.hidden = true;
  }

  private async copyCode(event: Event): Promise<void> {
    const button = (event.target as Element).closest<HTMLButtonElement>("button.copy-code");
    const code = button?.closest(".code")?.querySelector("code")?.textContent;
    if (!button || code === undefined || code === null) return;
    const done = await copyText(code);
    button.textContent = done ? "Copied" : "Not allowed";
    this.announce(done ? "Code copied" : "The browser did not allow copying");
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
}

/** The question, and the name of the file that goes with it. */
function labelOf({ text, sample }: Suggestion): string {
  return sample ? `${text} (${sample.slice(sample.lastIndexOf("/") + 1)})` : text;
}
