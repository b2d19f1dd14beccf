import { find } from "./element.js";
import { initialiseTheme, nextTheme, type Theme } from "./theme.js";

const NAMES: Readonly<Record<Theme, string>> = { system: "System", light: "Light", dark: "Dark" };

/** The page's `#theme` button switches the colours; `#theme-name` in it names them. */
export function wireThemeButton(): void {
  const name = find("theme-name", HTMLElement);
  name.textContent = NAMES[initialiseTheme()];
  find("theme", HTMLButtonElement).addEventListener("click", () => (name.textContent = NAMES[nextTheme()]));
}
