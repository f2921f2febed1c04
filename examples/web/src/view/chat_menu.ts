// What can be done with one chat of the list, in a menu next to its row.
import type { Session } from "../chat/session";
import { titleOf, type Conversation } from "../chat/transcript";
import { byId } from "./dom";
import { showError } from "./notices";
import { exportChats, LEFT_OUT } from "./transfer";

const MARGIN_PX = 8;

export interface ChatMenuActions {
  rename(id: string): void;
  /** The chat at this place of the list is gone. */
  removed(index: number): void;
}

export class ChatMenu {
  private readonly menu = byId("chat-menu");
  private readonly items = [...this.menu.querySelectorAll<HTMLButtonElement>("button")];
  private chat: Conversation | undefined;

  constructor(
    private readonly session: Session,
    private readonly actions: ChatMenuActions,
  ) {
    this.run("rename-chat", (chat) => actions.rename(chat.id));
    this.run("export-chat", (chat) => {
      const done = exportChats(session, [chat]);
      void done.then(({ leftOut }) => leftOut && showError(LEFT_OUT), showError);
    });
    this.run("delete-chat", (chat) => {
      const index = session.conversations.indexOf(chat);
      void session.remove(chat.id);
      this.actions.removed(index);
    });
    this.menu.addEventListener("keydown", (event) => this.onKey(event));
  }

  show(chat: Conversation, button: HTMLElement): void {
    this.chat = chat;
    const title = titleOf(chat);
    for (const item of this.items) item.setAttribute("aria-label", `${item.textContent} the chat “${title}”`);
    this.menu.showPopover();
    const place = button.getBoundingClientRect();
    const { offsetWidth, offsetHeight } = this.menu;
    const below = place.bottom + offsetHeight + MARGIN_PX <= innerHeight;
    this.menu.style.left = `${Math.max(MARGIN_PX, Math.min(place.left, innerWidth - offsetWidth - MARGIN_PX))}px`;
    this.menu.style.top = `${below ? place.bottom : Math.max(MARGIN_PX, place.top - offsetHeight)}px`;
    this.items[0]?.focus();
  }

  private run(id: string, action: (chat: Conversation) => void): void {
    byId(id).addEventListener("click", () => {
      const { chat } = this;
      this.menu.hidePopover(); // the focus goes back to the row
      try {
        if (chat && this.session.conversations.includes(chat)) action(chat);
      } catch (error) {
        showError(error);
      }
    });
  }

  private onKey(event: KeyboardEvent): void {
    if (event.key === "Escape") event.stopPropagation(); // closes the menu, and not the drawer that it is in
    const at = this.items.indexOf(document.activeElement as HTMLButtonElement);
    const last = this.items.length - 1;
    const next = { ArrowDown: at === last ? 0 : at + 1, ArrowUp: at <= 0 ? last : at - 1, Home: 0, End: last }[
      event.key
    ];
    if (next !== undefined) {
      event.preventDefault();
      this.items[next]?.focus();
    } else if (event.key === "Tab") {
      event.preventDefault();
      this.menu.hidePopover();
    }
  }
}
