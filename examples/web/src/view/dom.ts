// Making and finding elements.

type Child = Node | string | undefined | false;
type Attributes = Record<string, string | boolean | EventListener | undefined>;

/** An element: attributes by name, `on...` entries as listeners, then its children. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (typeof value === "string") element.setAttribute(name, value);
  }
  element.append(...children.filter((child): child is Node | string => child !== undefined && child !== false));
  return element;
}

/** An element of the page that is always there. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as T;
}

/** A button with an icon, and its name for those who do not see it. */
export function iconButton(
  icon: SVGElement,
  label: string,
  onclick: () => void,
  className = "icon",
): HTMLButtonElement {
  return h("button", { type: "button", class: className, "aria-label": label, title: label, onclick }, icon);
}

/** Puts elements into a list, and changes it only where it differs: who is in one keeps the focus. */
export function placeChildren(list: Element, items: Element[]): void {
  const present = [...list.children];
  if (items.length === present.length && items.every((item, index) => item === present[index])) return;
  const focused = document.activeElement;
  list.replaceChildren(...items);
  if (focused instanceof HTMLElement && focused !== document.activeElement && list.contains(focused)) focused.focus();
}

/**
 * Makes the children of `target` those of `source`, and changes only what differs: a selection or a
 * scrolled code block survives while a reply grows below it.
 */
export function patchChildren(target: Element, source: ParentNode): void {
  const wanted = [...source.childNodes];
  wanted.forEach((node, index) => {
    const present = target.childNodes[index];
    if (!present) target.append(node);
    else patchNode(present, node);
  });
  while (target.childNodes.length > wanted.length) target.lastChild!.remove();
}

function patchNode(present: ChildNode, wanted: ChildNode): void {
  if (present.isEqualNode(wanted)) return;
  if (present instanceof Text && wanted instanceof Text) present.data = wanted.data;
  else if (present instanceof HTMLElement && wanted instanceof HTMLElement && sameTag(present, wanted)) {
    patchChildren(present, wanted);
  } else present.replaceWith(wanted);
}

function sameTag(present: Element, wanted: Element): boolean {
  return (present.cloneNode(false) as Element).isEqualNode(wanted.cloneNode(false));
}

/** Hands a text to the browser as a download. */
export function saveFile({ name, text }: { name: string; text: string }): void {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // some browsers read it after the click
}

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
