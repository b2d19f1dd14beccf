/** The site's root. The build writes its relative path into each page, so that the site works under any prefix. */

/** Call this before the page changes its own address. */
export function rootOfSite(): URL {
  // Browsers resolve the icon again when the address changes, so make it absolute.
  for (const icon of document.querySelectorAll<HTMLLinkElement>("link[rel=icon]")) icon.setAttribute("href", icon.href);
  return new URL(document.documentElement.dataset["root"] ?? "", location.origin + location.pathname);
}
