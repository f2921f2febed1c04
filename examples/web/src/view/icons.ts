// Line icons on a grid of 24, drawn for this page.

const PATHS = {
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h10",
  close: "M6 6l12 12M18 6L6 18",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  check: "M5 12.5l4.5 4.5L19 7.5",
  attach: "M18.5 11.5l-6.7 6.7a4.2 4.2 0 0 1-6-6l7.4-7.4a2.8 2.8 0 0 1 4 4l-7.2 7.1a1.4 1.4 0 0 1-2-2l6.3-6.2",
  camera: "M4 8h3.5L9 5.5h6L16.5 8H20v11H4zM12 10a3.2 3.2 0 1 0 0 6.4 3.2 3.2 0 0 0 0-6.4",
  microphone:
    "M12 4a2.5 2.5 0 0 0-2.5 2.5v5a2.5 2.5 0 0 0 5 0v-5A2.5 2.5 0 0 0 12 4M6.5 11.5a5.5 5.5 0 0 0 11 0M12 17v3.5",
  retry: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  edit: "M5 19h3.5L19 8.5 15.5 5 5 15.5zM13 7.5l3.5 3.5",
  more: "M6 12h.1M12 12h.1M18 12h.1",
  download: "M12 4.5v11M6.5 10.5l5.5 5.5 5.5-5.5M5 20h14",
  upload: "M12 16V4.5M6.5 10L12 4.5l5.5 5.5M5 20h14",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10.2 11v5M13.8 11v5",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 5.8v4.4M9 13.8v4.4",
  down: "M12 5v13M6 12.5l6 6 6-6",
  warning: "M12 4.5l8.5 15h-17zM12 10v4.5M12 17v.2",
  blocked: "M12 3.5a8.5 8.5 0 1 0 0 17 8.5 8.5 0 0 0 0-17M6.2 6.2l11.6 11.6",
  reasoning:
    "M8.5 17.5a5 5 0 0 1-1.3-9.4 5.2 5.2 0 0 1 9.8-.6 4.6 4.6 0 0 1-1 9.1c-.8 1-2 1.4-3.4 1.2-1.3.9-3 .9-4.1-.3M8 20.8h.1",
  calculator: "M6 3.5h12v17H6zM9 7h6M9 11.5h.1M12 11.5h.1M15 11.5h.1M9 15h.1M12 15h.1M15 15h.1",
  chip: "M7 7h10v10H7zM10 10h4v4h-4zM10 3.5v3.5M14 3.5v3.5M10 17v3.5M14 17v3.5M3.5 10H7M3.5 14H7M17 10h3.5M17 14h3.5",
} as const;

export type IconName = keyof typeof PATHS;
const SVG = "http://www.w3.org/2000/svg";

export function icon(name: IconName): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon-image");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** Fills the places that the page's own HTML leaves for icons. */
export function drawIcons(): void {
  for (const place of document.querySelectorAll<HTMLElement>("[data-icon]")) {
    place.prepend(icon(place.dataset["icon"] as IconName));
  }
}
