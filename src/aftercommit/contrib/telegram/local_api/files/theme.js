// Loaded first, so that the page is never painted in the wrong colours.
"use strict";
try {
  const kept = localStorage.getItem("aftercommit.theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // Storage may be forbidden; then the system's colours apply.
}
