// Pictures and players of a message.
import { isFrame, type Attachment } from "../chat/transcript";
import { timestamp } from "../media/video";
import { formatShort } from "../package/units";
import { h } from "./dom";

/** Addresses of pictures and sounds for elements of the page, one for each. */
export class MediaUrls {
  private readonly urls = new Map<string, Promise<string | undefined>>();

  constructor(private readonly blobOf: (id: string) => Promise<Blob | undefined>) {}

  /** Undefined: the bytes are not kept any more. */
  of(id: string): Promise<string | undefined> {
    const known = this.urls.get(id);
    if (known) return known;
    const made = this.blobOf(id).then(
      (blob) => blob && URL.createObjectURL(blob),
      () => undefined,
    );
    this.urls.set(id, made);
    return made;
  }

  keepOnly(ids: string[]): void {
    for (const [id, url] of this.urls) {
      if (ids.includes(id)) continue;
      this.urls.delete(id);
      void url.then((made) => made && URL.revokeObjectURL(made));
    }
  }
}

const LACKS = { picture: "This package sees no pictures", sound: "This package hears no sounds" };

/** Undefined: there is nothing to draw. */
export function drawMedia(media: Attachment[], urls: MediaUrls): HTMLElement | undefined {
  if (!media.length) return undefined;
  return h(
    "ul",
    { class: "media", "aria-label": "Attached" },
    ...media.map((each) => h("li", {}, drawMedium(each, urls))),
  );
}

/** One of them. What the open package does not take is said below it: style/media.css shows that. */
export function drawMedium(medium: Attachment, urls: MediaUrls): HTMLElement {
  const { id, kind, name, seconds } = medium;
  const shown =
    kind === "picture" ? drawPicture(medium) : h("audio", { controls: true, preload: "metadata", "aria-label": name });
  const words = isFrame(medium)
    ? [timestamp(seconds!)]
    : kind === "sound" && [h("bdi", {}, name), ` · ${formatShort(seconds ?? 0)}`];
  const caption = words && h("span", { class: "name" }, ...words);
  const figure = h(
    "div",
    { class: `medium ${kind}${isFrame(medium) ? " frame" : ""}` },
    shown,
    caption,
    h("p", { class: "unseen" }, LACKS[kind]),
  );
  void urls.of(id).then((url) => {
    if (url) shown.src = url;
    else shown.replaceWith(h("p", { class: "gone" }, h("bdi", {}, name), " is not kept any more"));
  });
  return figure;
}

function drawPicture({ name, width, height }: Attachment): HTMLImageElement {
  const size = width && height ? { width: String(width), height: String(height) } : {}; // nothing jumps when it comes
  return h("img", { alt: name, title: name, ...size });
}
