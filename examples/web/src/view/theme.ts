export type Theme = "auto" | "light" | "dark";

/** Follows the system unless a person chose one. */
export function applyTheme(theme: Theme): void {
  if (theme === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}
