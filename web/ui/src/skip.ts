import { find } from "./element.js";

/** The link that skips to the content moves the focus and nothing else: what stands after `#` is the page's own. */
export function wireSkipLink(): void {
  const link = document.querySelector<HTMLAnchorElement>("a.skip");
  link?.addEventListener("click", (event) => {
    event.preventDefault();
    find(link.hash.slice(1), HTMLElement).focus();
  });
}
