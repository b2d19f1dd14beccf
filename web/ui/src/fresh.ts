const FRESH_FOR = 6000;

/** Highlight a new element for a few seconds. */
export function markFresh(part: HTMLElement): void {
  part.classList.add("fresh");
  setTimeout(() => part.classList.remove("fresh"), FRESH_FOR);
}
