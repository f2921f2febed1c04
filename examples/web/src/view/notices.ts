// Messages about what went wrong or can be undone, above the field.
import { inWords } from "../package/user_error";
import { byId, h, iconButton } from "./dom";
import { icon } from "./icons";

export interface Action {
  label: string;
  run(): void;
}

const UNDO_MS = 12_000;

function show(kind: "error" | "info", lines: string[], actions: Action[]): HTMLElement {
  const notice = h("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "status" });
  const close = () => notice.remove();
  notice.append(
    icon(kind === "error" ? "warning" : "check"),
    h("div", { class: "lines" }, ...lines.map((line) => h("p", {}, line))),
    ...actions.map(({ label, run }) => {
      const onclick = () => {
        close();
        run();
      };
      return h("button", { type: "button", class: "quiet", onclick }, label);
    }),
    iconButton(icon("close"), "Dismiss", close),
  );
  byId("notices").append(notice);
  return notice;
}

/** An error, in words for people; what was not foreseen is also logged. */
export function showError(error: unknown, actions: Action[] = []): void {
  const { message, hint } = typeof error === "string" ? { message: error, hint: "" } : inWords(error);
  clearErrors();
  show("error", hint ? [message, hint] : [message], actions);
}

export function showUndo(what: string, undo: () => void): void {
  for (const notice of document.querySelectorAll("#notices .info")) notice.remove();
  const notice = show("info", [what], [{ label: "Undo", run: undo }]);
  setTimeout(() => notice.remove(), UNDO_MS);
}

/** Takes away errors: something new begins. */
export function clearErrors(): void {
  for (const notice of document.querySelectorAll("#notices .error")) notice.remove();
}
