/** Where the site begins. The build writes the way there into each page, so that a site works under any prefix. */

/** To be asked before the page changes its own address. */
export function rootOfSite(): URL {
  return new URL(document.documentElement.dataset["root"] ?? "", location.origin + location.pathname);
}
