// Chats out of this browser into a file, and back.
import type { Session } from "../chat/session";
import { readChatFile, type ReadMedium, toFile } from "../chat/transfer";
import { withMedia } from "../chat/transfer_media";
import type { Conversation } from "../chat/transcript";
import { readPicture } from "../media/picture";
import { inWords, UserError } from "../package/user_error";
import { byId, h, saveFile } from "./dom";

/** Hands chats to the browser as a download, with their pictures and sounds if those fit. */
export async function exportChats(session: Session, chats: Conversation[]): Promise<{ leftOut: boolean }> {
  const { conversations, leftOut } = await withMedia(chats, (id) => session.mediaBlob(id));
  saveFile(toFile(conversations));
  return { leftOut };
}

export const LEFT_OUT = "Their pictures and sounds are more than a file holds, and are left out.";

export class TransferButtons {
  private readonly state = byId("transfer-state");
  private readonly problem = byId("transfer-error");
  private readonly file = byId<HTMLInputElement>("import-file");

  constructor(private readonly session: Session) {
    byId("export-chats").addEventListener("click", () => void this.attempt(() => this.exportAll()));
    byId("import-chats").addEventListener("click", () => this.file.click());
    this.file.addEventListener("change", () => {
      const files = [...(this.file.files ?? [])];
      void this.attempt(() => this.importAll(files)).finally(() => (this.file.value = "")); // the same file may come again
    });
  }

  /** For a dialog that opens. */
  show(): void {
    this.state.textContent = "";
    this.problem.replaceChildren();
    byId<HTMLButtonElement>("export-chats").disabled = this.session.conversations.length === 0;
  }

  private async exportAll(): Promise<void> {
    const { conversations } = this.session;
    const { leftOut } = await exportChats(this.session, conversations);
    this.state.textContent = `${count(conversations.length)} exported.${leftOut ? ` ${LEFT_OUT}` : ""}`;
  }

  /** All files, or none of them. */
  private async importAll(files: File[]): Promise<void> {
    if (!files.length) return;
    const chats = [];
    const media: ReadMedium[] = [];
    for (const file of files) chats.push(...(await readChatFile(file, (medium) => media.push(medium))));
    // A file may come from anywhere: what is shown is looked at like what is attached.
    for (const { kind, blob, name } of media) if (kind === "picture") await readPicture(blob, name);
    await this.session.add(chats, media);
    this.show();
    this.state.textContent = `${count(chats.length)} imported.`;
  }

  private async attempt(action: () => Promise<void>): Promise<void> {
    this.show();
    try {
      await action();
    } catch (error) {
      const { message, hint } = asUserError(error);
      this.problem.replaceChildren(...[message, hint].map((line) => h("p", {}, line)));
    }
  }
}

function asUserError(error: unknown): UserError {
  if ((error as Error)?.name === "QuotaExceededError") {
    return new UserError(
      "The browser's storage for this site is full.",
      "Nothing was imported. Remove models or chats, or free the disk.",
    );
  }
  return inWords(error);
}

function count(chats: number): string {
  return chats === 1 ? "1 chat" : `${chats} chats`;
}
