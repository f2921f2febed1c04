import { createElement } from "react";

const icon = createElement("link", { rel: "icon", href: "data:," });

export default ({ children }) => createElement("html", { lang: "en" }, createElement("body", null, icon, children));
