import { find } from "./element.js";

/** The skip link moves the focus and leaves the address alone: pages use the part after `#`. */
export function wireSkipLink(): void {
  const link = document.querySelector<HTMLAnchorElement>("a.skip");
  link?.addEventListener("click", (event) => {
    event.preventDefault();
    find(link.hash.slice(1), HTMLElement).focus();
  });
}
