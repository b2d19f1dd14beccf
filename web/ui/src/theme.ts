/** Light, dark, or the system's setting. The choice applies to all pages of this origin. */

export type Theme = "system" | "light" | "dark";

const KEY = "aftercommit.theme";
const ORDER: readonly Theme[] = ["system", "light", "dark"];

/** Apply the stored choice. Call this before the first paint. */
export function initialiseTheme(): Theme {
  const kept = read();
  apply(kept);
  return kept;
}

/** Apply and store the next choice. */
export function nextTheme(): Theme {
  const next = ORDER[(ORDER.indexOf(shown()) + 1) % ORDER.length] ?? "system";
  apply(next);
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Storage may be forbidden; then the choice lasts until the page is closed.
  }
  return next;
}

function shown(): Theme {
  return known(document.documentElement.dataset["theme"] ?? null);
}

function known(name: string | null): Theme {
  return ORDER.find((theme) => theme === name) ?? "system";
}

function read(): Theme {
  try {
    return known(localStorage.getItem(KEY));
  } catch {
    return "system";
  }
}

function apply(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}
