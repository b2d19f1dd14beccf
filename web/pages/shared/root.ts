/** Where the site begins. The build writes the way there into each page, so that a site works under any prefix. */

/** To be asked before the page changes its own address. */
export function rootOfSite(): URL {
  // A browser looks for the icon anew when the address changes, and would do so from there.
  for (const icon of document.querySelectorAll<HTMLLinkElement>("link[rel=icon]")) icon.setAttribute("href", icon.href);
  return new URL(document.documentElement.dataset["root"] ?? "", location.origin + location.pathname);
}
