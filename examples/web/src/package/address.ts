// From what a person types to the folder of a package: an address, or a model of the hub by its id.
import { UserError } from "./user_error";

const HUB = "https://huggingface.co/";
const HUB_HOSTS = ["huggingface.co", "www.huggingface.co", "hf.co"];
const MAIN = "main";
const ID = /^([\w.-]+)\/([\w.-]+)(?:@(.*))?$/; // owner/name, owner/name@revision
const LOCAL = /^(localhost|\d+\.\d+\.\d+\.\d+|\[::1\])(:\d+)?(\/|$)/i;
const HOST = /^([a-z\d-]+\.)+[a-z]{2,}(:\d+)?\//i; // a name that ends as hosts do
/** Parts of the hub's addresses after a model's id, with a revision after them. */
const VIEWS = ["resolve", "tree", "blob", "raw"];
const OTHER_KINDS = ["datasets", "spaces", "docs", "collections", "papers", "blog"];
const LONGEST_NAME = 96;

export interface HubModel {
  id: string;
  revision: string;
}

/**
 * The folder's address, with a slash at the end.
 *
 * `owner/name` and `owner/name@revision` are models of the hub, and so are the addresses of their pages. A folder next to
 * the page (`base`) with a slash in its name ends with a slash, or begins with `./`.
 */
export function packageUrl(text: string, base: string): string {
  const typed = text.trim();
  if (!typed)
    throw new UserError("There is no address.", "Give a model's id on the hub, owner/name, or a folder's address.");
  const id = ID.exec(typed);
  if (id && !HOST.test(typed) && !LOCAL.test(typed) && !/^\.\.?$/.test(id[1]!)) return hubFolder(id[1]!, id[2]!, id[3]);
  const scheme = LOCAL.test(typed) ? "http://" : HOST.test(typed) ? "https://" : "";
  let url: URL;
  try {
    url = new URL(scheme + typed, base);
  } catch {
    throw new UserError(
      `\`${text}\` is no address.`,
      "Give a model's id on the hub, owner/name, or a folder's address, such as https://example.org/my-package/",
    );
  }
  if (!["http:", "https:"].includes(url.protocol)) {
    throw new UserError(
      `${url.protocol} addresses cannot be read from a page.`,
      "Serve the package over https or from localhost.",
    );
  }
  if (url.username || url.password) {
    throw new UserError(
      `The address has a name or password before its host, ${url.host}; a page cannot read such addresses.`,
      "Give the address without it, and serve the package without a password.",
    );
  }
  if (HUB_HOSTS.includes(url.hostname)) return fromHubPage(url);
  url.hash = "";
  url.search = "";
  if (!url.pathname.endsWith("/")) url.pathname += "/";
  return url.href;
}

/** The model that a folder of the hub belongs to; undefined for other hosts. */
export function hubModelOf(url: string): HubModel | undefined {
  const { origin, pathname } = new URL(url);
  const [, owner, name, view, revision] = pathname.split("/");
  if (origin !== new URL(HUB).origin || view !== "resolve" || !revision) return undefined;
  return { id: `${owner}/${name}`, revision: decodeURIComponent(revision) };
}

/** A page of the hub means its files. */
function fromHubPage({ pathname }: URL): string {
  const [owner, last, view, revision, ...below] = pathname.split("/").filter(Boolean).map(decode);
  const [name, at] = last?.split(/@(.*)/) ?? [];
  if (!owner || !name || OTHER_KINDS.includes(owner)) {
    throw new UserError("The address names no model of the hub.", `A model's address is ${HUB}owner/name`);
  }
  if (!view || !VIEWS.includes(view) || !revision) return hubFolder(owner, name, at);
  if (view === "blob" || /\.(json|bin|wasm|jinja|md)$/.test(below.at(-1) ?? "")) below.pop(); // a file of the folder
  return hubFolder(owner, name, revision) + below.map((part) => `${encodeURIComponent(part)}/`).join("");
}

function hubFolder(owner: string, name: string, revision = MAIN): string {
  for (const part of [owner, name]) {
    if (!/^[\w.-]+$/.test(part) || /^[-.]|[-.]$|--|\.\./.test(part) || part.length > LONGEST_NAME) {
      throw new UserError(
        `\`${owner}/${name}\` is no id of a model.`,
        "Ids of the hub are owner/name, in letters, digits, `-`, `_` and `.`",
      );
    }
  }
  if (!/^[^\s\\^~:?*[]+$/.test(revision)) {
    throw new UserError(
      `\`${revision}\` is no revision.`,
      "Give a branch, tag or commit after the `@`, or leave both out.",
    );
  }
  // A branch's name may hold slashes, and is one part of the address.
  return `${HUB}${owner}/${name}/resolve/${encodeURIComponent(revision)}/`;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
