// The list of conversations, with search; a drawer on narrow screens.
import { searchChats, type Hit } from "../chat/search";
import type { Session } from "../chat/session";
import { titleOf, type Conversation } from "../chat/transcript";
import { formatCount } from "../package/units";
import { ChatMenu } from "./chat_menu";
import { byId, h, iconButton, placeChildren } from "./dom";
import { icon } from "./icons";
import { isComposing } from "./keys";

/** So many are shown; older ones are found by searching. */
const MOST_ROWS = 300;

export class Sidebar {
  private readonly list = byId("conversations");
  private readonly query = byId<HTMLInputElement>("search");
  private readonly menu: ChatMenu;
  private rows = new Map<string, Row>();

  constructor(
    private readonly session: Session,
    onNewChat: () => void,
  ) {
    this.menu = new ChatMenu(session, {
      rename: (id) => this.rows.get(id)?.startRename(),
      removed: (index) => this.focusRow(index),
    });
    byId("new-chat").addEventListener("click", () => {
      this.setOpen(false);
      onNewChat();
    });
    byId("open-sidebar").addEventListener("click", () => this.setOpen(true));
    byId("close-sidebar").addEventListener("click", () => this.setOpen(false));
    byId("backdrop").addEventListener("click", () => this.setOpen(false));
    byId("sidebar").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented) this.setOpen(false);
    });
    this.query.addEventListener("input", () => this.show());
    this.query.addEventListener("keydown", (event) => this.onSearchKey(event));
  }

  show(): void {
    const { conversations } = this.session;
    const hits = searchChats(conversations, this.query.value);
    const rows = new Map<string, Row>();
    for (const hit of hits.slice(0, MOST_ROWS)) {
      const { id } = hit.conversation;
      const row = this.rows.get(id) ?? new Row(this.session, this.menu, () => this.setOpen(false));
      row.show(hit, hit.conversation === this.session.current);
      rows.set(id, row);
    }
    this.rows = rows;
    placeChildren(
      this.list,
      [...rows.values()].map((row) => row.item),
    );
    byId("no-conversations").hidden = conversations.length > 0;
    byId("search-box").hidden = conversations.length === 0 && !this.query.value;
    byId("search-state").textContent = this.stateOf(hits.length);
  }

  /** Goes to the field for searching, in the drawer, too. */
  startSearch(): void {
    if (byId("search-box").hidden) return;
    this.setOpen(true);
    this.query.focus();
    this.query.select();
  }

  private stateOf(found: number): string {
    const all = this.session.conversations.length;
    const more = found > MOST_ROWS ? ` The latest ${MOST_ROWS} are shown.` : "";
    if (!this.query.value.trim()) return more && `${formatCount(all)} chats.${more}`;
    return found ? `${formatCount(found)} of ${formatCount(all)} chats.${more}` : "No chat has these words.";
  }

  private onSearchKey(event: KeyboardEvent): void {
    if (event.key === "Escape" && this.query.value) {
      event.preventDefault(); // the drawer stays
      this.query.value = "";
      this.show();
    } else if (event.key === "ArrowDown") {
      event.preventDefault();
      this.focusRow(0);
    } else if (event.key === "Enter" && this.query.value) {
      this.list.querySelector<HTMLElement>(".open")?.click();
    }
  }

  private focusRow(index: number): void {
    const opens = this.list.querySelectorAll<HTMLElement>(".open");
    (opens[Math.min(index, opens.length - 1)] ?? byId("new-chat")).focus();
  }

  private setOpen(open: boolean): void {
    const wasOpen = document.body.classList.contains("sidebar-open");
    document.body.classList.toggle("sidebar-open", open);
    byId("open-sidebar").setAttribute("aria-expanded", String(open));
    if (open) byId("close-sidebar").focus();
    else if (wasOpen) byId("open-sidebar").focus();
  }
}

/** One chat of the list: opened, renamed, or given to the menu. */
class Row {
  readonly item = h("li");
  private readonly title = h("span", { class: "title", dir: "auto" });
  private readonly snippet = h("span", { class: "snippet", dir: "auto" });
  private readonly open: HTMLButtonElement;
  private readonly more: HTMLButtonElement;
  private conversation: Conversation | undefined;

  constructor(
    private readonly session: Session,
    menu: ChatMenu,
    onOpened: () => void,
  ) {
    const onclick = () => {
      this.session.select(this.conversation!.id);
      onOpened();
    };
    this.open = h("button", { type: "button", class: "open", onclick }, this.title, this.snippet);
    this.open.addEventListener("keydown", (event) => {
      if (event.key !== "F2") return;
      event.preventDefault();
      this.startRename();
    });
    this.more = iconButton(icon("more"), "", () => menu.show(this.conversation!, this.more));
    this.more.setAttribute("aria-haspopup", "menu");
    this.item.append(this.open, this.more);
  }

  show({ conversation, snippet }: Hit, isCurrent: boolean): void {
    this.conversation = conversation;
    const title = titleOf(conversation);
    this.title.textContent = title;
    this.open.title = title;
    this.snippet.textContent = snippet ?? "";
    this.snippet.hidden = !snippet;
    this.more.setAttribute("aria-label", `More for the chat “${title}”`);
    this.more.title = "Rename, export, delete";
    this.item.classList.toggle("current", isCurrent);
    if (isCurrent) this.open.setAttribute("aria-current", "true");
    else this.open.removeAttribute("aria-current");
  }

  /** A field in the place of the title. */
  startRename(): void {
    const { id } = this.conversation!;
    const before = titleOf(this.conversation!);
    const field = h("input", {
      type: "text",
      class: "rename",
      dir: "auto",
      "aria-label": "Name of the chat",
      maxlength: "120",
      autocomplete: "off",
    });
    field.value = before;
    let ended = false; // taking the field away makes it lose the focus, which ends it, too
    const end = (keep: boolean) => {
      if (ended) return;
      ended = true;
      const hadFocus = document.activeElement === field;
      this.item.replaceChildren(this.open, this.more);
      if (keep && field.value.trim() !== before) this.session.rename(id, field.value);
      if (hadFocus) this.open.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (isComposing(event)) return;
      if (event.key === "Enter") end(true);
      else if (event.key === "Escape") {
        event.preventDefault();
        event.stopPropagation();
        end(false);
      }
    });
    field.addEventListener("blur", () => end(true));
    this.item.replaceChildren(field);
    field.focus();
    field.select();
  }
}
