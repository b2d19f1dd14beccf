// Loaded before anything is painted, so that the page never flashes in the wrong colours.
"use strict";
try {
  const kept = localStorage.getItem("aftercommit.theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // Storage may be forbidden: then the colours are the system's.
}
