/** Single-key shortcuts; off while the user types or a dialog is open. */

import { element } from "@aftercommit/ui";

export interface Key {
  /** Values of `KeyboardEvent.key`. */
  readonly keys: readonly string[];
  readonly means: string;
  readonly act: () => void;
}

export function listenToKeys(keys: readonly Key[], escape: () => void): void {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      escape();
      return;
    }
    if (isTyping(event.target)) return;
    const found = keys.find(({ keys: names }) => names.includes(event.key));
    // Enter presses the button or the link that has the focus.
    if (!found || (event.key === "Enter" && isPressable(event.target))) return;
    event.preventDefault();
    found.act();
  });
}

function isPressable(target: EventTarget | null): boolean {
  return target instanceof HTMLButtonElement || target instanceof HTMLAnchorElement;
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLInputElement || target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement
  );
}

const SHOWN: Readonly<Record<string, string>> = { ArrowDown: "↓", ArrowUp: "↑", PageDown: "Page ↓", PageUp: "Page ↑" };

/** `escape`: what the Escape key does on this page. */
export function describeKeys(list: HTMLElement, keys: readonly Key[], escape: string): void {
  const entries = [...keys, { keys: ["Esc"], means: escape, act: () => {} }];
  for (const { keys: names, means } of entries) {
    const caps = names.flatMap((name, index) => [...(index > 0 ? [" "] : []), element("kbd", {}, SHOWN[name] ?? name)]);
    list.append(element("dt", {}, ...caps), element("dd", {}, means));
  }
}
