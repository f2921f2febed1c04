// One message of the conversation, and how it changes while it is written.
import { splitReply, textOf, type Part } from "../chat/reply";
import { describeCall } from "../chat/tools";
import type { AssistantMessage, Message, ReplyState, UserMessage } from "../chat/transcript";
import { formatCount, formatShort } from "../package/units";
import { copyText, h, iconButton, patchChildren } from "./dom";
import { icon } from "./icons";
import { isComposing } from "./keys";
import { renderMarkdown } from "./markdown";

export interface MessageActions {
  regenerate(): void;
  edit(id: string, text: string): void;
  announce(text: string): void;
  /** Pictures and players; undefined: nothing is attached. */
  drawMedia(message: UserMessage): HTMLElement | undefined;
}

const ENDINGS: Partial<Record<ReplyState, string>> = {
  stopped: "Stopped",
  cut: "Ended by the limit of tokens",
  interrupted: "Interrupted",
};

const STATS_HINT =
  "First: from sending to the first token. Kept from before: tokens of the prompt that were not read again";

/** Blocks that a text can be going on in. */
const BLOCKS = "p, h1, h2, h3, h4, h5, h6, ul, ol, li, blockquote, .code, pre, pre > code";

/** Where the next word of an answer comes, for the caret. */
function endOf(answer: Element): Element {
  let end = answer;
  for (let next = end.lastElementChild; next?.matches(BLOCKS) && isLast(next); next = end.lastElementChild) end = next;
  return end;
}

/** Whether nothing but white space is after a child: `code` in the middle of a line is not the end. */
function isLast(child: Element): boolean {
  for (let next = child.nextSibling; next; next = next.nextSibling) if (next.textContent?.trim()) return false;
  return true;
}

export class MessageView {
  readonly element: HTMLLIElement;
  private readonly body = h("div", { class: "body" });
  private readonly foot = h("div", { class: "foot" });
  private media: HTMLElement | undefined;
  private frame = 0;

  constructor(
    private readonly message: Message,
    private readonly actions: MessageActions,
    private last: boolean,
  ) {
    const name = message.role === "user" ? "You" : "Model";
    this.element = h(
      "li",
      { class: "message", "data-role": message.role, "data-id": message.id },
      h("h2", { class: "sr-only" }, name),
      this.body,
      this.foot,
    );
    if (message.role === "user") this.drawUser(message);
    else this.draw();
  }

  /** The last reply has more buttons. */
  setLast(last: boolean): void {
    if (this.last === last) return;
    this.last = last;
    if (this.message.role === "assistant") this.drawFoot(this.message);
  }

  /** Draws at the next frame: tokens may come faster than a screen shows them. */
  update(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  /** Draws now, even in a tab that nobody sees. */
  draw(): void {
    if (this.message.role !== "assistant") return;
    const reply = this.message;
    this.element.dataset["state"] = reply.state;
    patchChildren(this.body, this.drawReply(reply));
    this.drawFoot(reply);
  }

  private drawReply(reply: AssistantMessage): DocumentFragment {
    const fragment = document.createDocumentFragment();
    const writing = reply.state === "writing";
    reply.rounds.forEach((round, index) => {
      const inWork = writing && index === reply.rounds.length - 1;
      let results = 0;
      for (const part of splitReply(round.opened + round.raw, inWork)) {
        const result = part.kind === "call" && part.call ? round.results[results++]?.text : undefined;
        fragment.append(this.drawPart(part, inWork, result));
      }
    });
    if (!writing) return fragment;
    const last = fragment.lastElementChild;
    if (last?.matches(".answer")) endOf(last).append(h("span", { class: "caret", "aria-hidden": "true" }));
    else if (!textOf(reply)) fragment.append(h("p", { class: "waiting" }, h("span"), h("span"), h("span")));
    return fragment;
  }

  private drawPart(part: Part, inWork: boolean, result: string | undefined): HTMLElement {
    if (part.kind === "answer") {
      const answer = h("div", { class: "answer" });
      answer.innerHTML = renderMarkdown(part.text);
      return answer;
    }
    if (part.kind === "call") {
      const what = part.call ? describeCall(part.call) : part.text;
      const failed = result?.startsWith("error") ?? false;
      const outcome = result === undefined ? (inWork ? "…" : "not run") : result;
      return h(
        "div",
        { class: failed ? "call failed" : "call" },
        icon("calculator"),
        h("code", { dir: "ltr" }, what),
        h("span", { class: "call-result", dir: "auto" }, result === undefined ? outcome : `= ${outcome}`),
      );
    }
    const text = part.open && inWork ? "Thinking…" : "Reasoning";
    // Open or not is the reader's choice: it survives the redrawing.
    const wasOpen = this.body.querySelector<HTMLDetailsElement>("details.reasoning")?.open ?? false;
    const inner = h("div", { class: "answer" });
    inner.innerHTML = renderMarkdown(part.text);
    return h("details", { class: "reasoning", open: wasOpen }, h("summary", {}, icon("reasoning"), text), inner);
  }

  private drawFoot(reply: AssistantMessage): void {
    if (reply.state === "writing") {
      this.foot.replaceChildren();
      return;
    }
    const { stats } = reply;
    const ending = ENDINGS[reply.state];
    const numbers = stats && [
      `${formatCount(stats.tokens)} tokens`,
      ...(stats.tokensPerSecond ? [`${stats.tokensPerSecond.toFixed(1)} tokens/s`] : []),
      ...(stats.tokensPerStep ? [`${stats.tokensPerStep.toFixed(1)} tokens a step`] : []),
      `first after ${formatShort(stats.firstTokenSeconds)}`,
      ...(stats.keptTokens ? [`${formatCount(stats.keptTokens)} tokens kept from before`] : []),
    ];
    this.foot.replaceChildren(
      ...[
        ending && h("span", { class: "ending" }, ending),
        this.copyButton(),
        this.last && iconButton(icon("retry"), "Write the answer again", () => this.actions.regenerate()),
        numbers && h("span", { class: "stats", title: STATS_HINT }, numbers.join(" · ")),
      ].filter((each): each is HTMLElement => Boolean(each)),
    );
  }

  private drawUser(message: UserMessage): void {
    this.media ??= this.actions.drawMedia(message);
    const { media } = this;
    this.body.replaceChildren(
      ...[media, message.text && h("p", { class: "asked", dir: "auto" }, message.text)].filter((each) => !!each),
    );
    this.foot.replaceChildren(
      this.copyButton(),
      iconButton(icon("edit"), "Edit this message and ask again", () => this.startEdit()),
    );
  }

  /** Opens the message for editing. */
  startEdit(): void {
    if (this.message.role !== "user") return;
    const message = this.message;
    const field = h("textarea", { "aria-label": "Edited message", dir: "auto", rows: "3" });
    field.value = message.text;
    const close = () => this.drawUser(message);
    const send = () => {
      const text = field.value.trim();
      if (text || this.media) this.actions.edit(message.id, text);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) {
        event.preventDefault();
        send();
      }
    });
    const onsubmit = (event: Event) => {
      event.preventDefault();
      send();
    };
    this.body.replaceChildren(
      ...(this.media ? [this.media] : []),
      h(
        "form",
        { class: "edit", onsubmit },
        field,
        h(
          "div",
          { class: "buttons" },
          h("button", { type: "button", class: "quiet", onclick: close }, "Cancel"),
          h("button", { type: "submit", class: "primary" }, "Ask again"),
        ),
      ),
    );
    this.foot.replaceChildren();
    field.focus();
  }

  private copyButton(): HTMLButtonElement {
    const button = iconButton(icon("copy"), "Copy", () => {
      void copyText(textOf(this.message)).then((done) => {
        button.replaceChildren(icon(done ? "check" : "close"));
        this.actions.announce(done ? "Copied" : "The browser did not allow copying");
        setTimeout(() => button.replaceChildren(icon("copy")), 1500);
      });
    });
    return button;
  }
}
