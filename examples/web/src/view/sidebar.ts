// The list of conversations; a drawer on narrow screens.
import type { Session } from "../chat/session";
import { titleOf } from "../chat/transcript";
import { byId, h, iconButton } from "./dom";
import { icon } from "./icons";

export class Sidebar {
  private readonly list = byId("conversations");

  constructor(
    private readonly session: Session,
    onNewChat: () => void,
  ) {
    byId("new-chat").addEventListener("click", () => {
      this.setOpen(false);
      onNewChat();
    });
    byId("open-sidebar").addEventListener("click", () => this.setOpen(true));
    byId("close-sidebar").addEventListener("click", () => this.setOpen(false));
    byId("backdrop").addEventListener("click", () => this.setOpen(false));
    byId("sidebar").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.setOpen(false);
    });
  }

  show(): void {
    const { conversations, current } = this.session;
    this.list.replaceChildren(
      ...conversations.map((conversation) => {
        const title = titleOf(conversation);
        const open = h(
          "button",
          {
            type: "button",
            class: "open",
            "aria-current": conversation === current ? "true" : undefined,
            onclick: () => {
              this.session.select(conversation.id);
              this.setOpen(false);
            },
          },
          title,
        );
        const remove = iconButton(icon("trash"), `Delete the chat “${title}”`, () => {
          void this.session.remove(conversation.id);
        });
        return h("li", { class: conversation === current ? "current" : "" }, open, remove);
      }),
    );
    byId("no-conversations").hidden = conversations.length > 0;
  }

  private setOpen(open: boolean): void {
    const wasOpen = document.body.classList.contains("sidebar-open");
    document.body.classList.toggle("sidebar-open", open);
    byId("open-sidebar").setAttribute("aria-expanded", String(open));
    if (open) byId("close-sidebar").focus();
    else if (wasOpen) byId("open-sidebar").focus();
  }
}
