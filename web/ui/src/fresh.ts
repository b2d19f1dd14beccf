const FRESH_FOR = 6000;

/** Say calmly that something is new: a mark that fades by itself. */
export function markFresh(part: HTMLElement): void {
  part.classList.add("fresh");
  setTimeout(() => part.classList.remove("fresh"), FRESH_FOR);
}
