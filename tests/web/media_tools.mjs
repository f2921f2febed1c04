// What scenarios about pictures and sounds do again and again.
import { inPage } from "./page_chats.mjs";

/** A page with the package that takes pictures and sounds. */
export async function withMedia({ open, state, context, server }, action, name = "media") {
  await inPage(context, { server }, async (page) => {
    await open(page, name);
    await state(page, "ready");
    await action(page);
  });
}

export const attached = (page) => page.locator("#attached > li:not(.reading)");
export const error = (page, words) => page.locator("#notices .error", { hasText: words }).waitFor();

export async function attach(page, ...files) {
  const before = await attached(page).count();
  await page.locator("#attach-file").setInputFiles(files);
  await page.waitForFunction(
    (count) => document.querySelectorAll("#attached > li:not(.reading)").length === count,
    before + files.length,
  );
}

/** Hands files to the page as the browser does it for a paste or a drop. */
export async function hand(page, kind, files) {
  const sent = files.map(({ name, mimeType, buffer }) => ({ name, type: mimeType, data: buffer.toString("base64") }));
  return page.evaluate(
    ([event, list]) => {
      const transfer = new DataTransfer();
      for (const { name, type, data } of list) {
        const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
        transfer.items.add(new File([bytes], name, { type }));
      }
      const options = { bubbles: true, cancelable: true };
      if (event === "paste") {
        const made = new ClipboardEvent("paste", { ...options, clipboardData: transfer });
        return !document.querySelector("#prompt").dispatchEvent(made);
      }
      const target = document.querySelector("#messages");
      target.dispatchEvent(new DragEvent("dragover", { ...options, dataTransfer: transfer }));
      const isMarked = document.body.classList.contains("dropping");
      return !target.dispatchEvent(new DragEvent("drop", { ...options, dataTransfer: transfer })) && isMarked;
    },
    [kind, sent],
  );
}

/** What the engine was asked last. */
export async function lastRequest(page) {
  const worker = page.workers().find((each) => /worker/.test(each.url()));
  return worker.evaluate(() => self.requests.at(-1));
}

export const partsOf = (message) => (typeof message.content === "string" ? [] : message.content);
export const kindsOf = (message) => partsOf(message).map(({ type }) => type);

/** Waits until every picture of the transcript is drawn. */
export const drawn = (page, count) =>
  page.waitForFunction((wanted) => {
    const images = [...document.querySelectorAll("#messages .media img")];
    return images.length === wanted && images.every(({ complete, naturalWidth }) => complete && naturalWidth > 0);
  }, count);
