// The model in the page's head: a list to change it by, where there are several beside the page.
import { packageUrl } from "../package/address";
import type { OfferedModel } from "../package/models";
import { byId, h } from "./dom";

export class ModelSwitch {
  private readonly list = byId<HTMLSelectElement>("switch-model");
  private models: readonly OfferedModel[] = [];

  constructor(open: (address: string) => void) {
    this.list.addEventListener("change", () => open(this.list.value));
  }

  offer(models: readonly OfferedModel[]): void {
    this.models = models;
    this.list.replaceChildren(...models.map(({ name, address }) => h("option", { value: address }, name)));
  }

  /** `url`: of the package that is open; undefined where none is, or the page shows the whole list. */
  show(url: string | undefined): void {
    const open = this.models.find(({ address }) => packageUrl(address, document.baseURI) === url);
    this.list.hidden = !open || this.models.length < 2;
    if (open) this.list.value = open.address;
  }
}
