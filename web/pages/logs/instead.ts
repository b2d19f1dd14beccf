/** The message in place of lines: there are none, or why they cannot be read. */

import { element, find } from "@aftercommit/ui";

export class Instead {
  readonly #place = find("empty", HTMLElement);
  /** The message is an error, and stays until lines can be read again. */
  #refused = false;

  /** Say that there are no lines. `filtered`: filters may hide some. */
  none(isEmpty: boolean, filtered: boolean): void {
    if (this.#refused) return;
    this.#place.hidden = !isEmpty;
    if (!isEmpty) return;
    this.#say(
      filtered ? "No lines match these filters" : "No lines yet",
      "New lines appear here as soon as they are written.",
    );
  }

  /** Show an error, and keep it until `allow`. */
  refuse(said?: { readonly title: string; readonly text: string; readonly more?: Node }): void {
    this.#refused = true;
    if (said) this.#say(said.title, said.text, ...(said.more ? [said.more] : []));
  }

  /** Reading works again. */
  allow(): void {
    this.#refused = false;
  }

  #say(title: string, text: string, ...more: Node[]): void {
    this.#place.hidden = false;
    this.#place.replaceChildren(element("h2", {}, title), element("p", {}, text), ...more);
  }
}
