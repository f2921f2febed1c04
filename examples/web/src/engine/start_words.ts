// What the page says of a start of the model.
import { UserError } from "../package/user_error";

export function withoutDrafts({ message, hint }: UserError): UserError {
  return new UserError(`The model answers without its drafter: ${message}`, hint);
}

export function withoutStorage(why: string): UserError {
  return new UserError(
    `What conversations begin with is not kept for the next visit: ${why}.`,
    "Chats go on as before. Remove models or chats in Settings, or free the disk.",
  );
}

// The client's own progress texts count bytes and seconds that were reported before.
export function startingText(detail: string): string {
  if (/shader/i.test(detail)) return "Preparing the graphics programs…";
  return detail ? "Moving the weights to the graphics device…" : "Starting the engine…";
}
