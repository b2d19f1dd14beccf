import { element } from "./element.js";

const SHOWN_FOR = 2500;

/** Show a short message for a few seconds; screen readers read it. */
export function toast(text: string): void {
  const shown = element("div", { class: "toast" }, text);
  place().append(shown);
  setTimeout(() => shown.remove(), SHOWN_FOR);
}

function place(): HTMLElement {
  const known = document.querySelector<HTMLElement>(".toasts");
  if (known) return known;
  const made = element("div", { class: "toasts", role: "status" });
  document.body.append(made);
  return made;
}
