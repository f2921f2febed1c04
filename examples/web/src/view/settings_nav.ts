// The way to the sections of the settings: one button each, the present one marked.
import { byId, h } from "./dom";

const nav = () => byId("settings-nav");

/** Makes the buttons, from the sections' headings; returns what shows the beginning when the settings open. */
export function setUpSettingsNav(): () => void {
  const scroller = byId("settings-sections");
  const sections = [...scroller.querySelectorAll<HTMLElement>("section")];
  const buttons = sections.map((section) => {
    const heading = section.querySelector("h3")!;
    heading.id ||= `section-${sections.indexOf(section)}`;
    section.setAttribute("aria-labelledby", heading.id);
    heading.tabIndex = -1;
    const go = () => {
      section.scrollIntoView({ block: "start" });
      heading.focus({ preventScroll: true });
      mark(section);
    };
    return h("button", { type: "button", class: "quiet", onclick: go }, heading.textContent);
  });
  nav().replaceChildren(...buttons);

  const mark = (present: HTMLElement) => {
    buttons.forEach((button, index) => {
      const isPresent = sections[index] === present;
      if (isPresent) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      // Only the row of buttons moves, where it is one.
      if (isPresent)
        nav().scrollLeft = button.offsetLeft - nav().offsetLeft - (nav().clientWidth - button.offsetWidth) / 2;
    });
  };
  const showPresent = () => {
    const { top, bottom } = scroller.getBoundingClientRect();
    const atEnd = scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 2;
    const isIn = (section: HTMLElement) => section.getBoundingClientRect().bottom > top + (bottom - top) / 4;
    mark((atEnd && scroller.scrollTop > 0 ? sections.at(-1) : sections.find(isIn)) ?? sections[0]!);
  };
  let isMoved = false; // by a button, whose section holds although it may be too short to reach the top
  nav().addEventListener("click", () => (isMoved = true));
  scroller.addEventListener(
    "scroll",
    () => {
      if (!isMoved) showPresent();
      isMoved = false;
    },
    { passive: true },
  );
  return () => {
    scroller.scrollTop = 0;
    mark(sections[0]!);
  };
}
