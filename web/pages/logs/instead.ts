/** What the page says instead of lines: that there are none, or why they cannot be read. */

import { element, find } from "@aftercommit/ui";

export class Instead {
  readonly #place = find("empty", HTMLElement);
  /** What is said is a refusal, and stays until there are lines again. */
  #refused = false;

  /** `filtered`: there may be lines that filters keep away. */
  none(isEmpty: boolean, filtered: boolean): void {
    if (this.#refused) return;
    this.#place.hidden = !isEmpty;
    if (!isEmpty) return;
    this.#say(
      filtered ? "No line matches these filters" : "No lines yet",
      "New ones appear here by themselves, the moment they are written.",
    );
  }

  /** From here on nothing else is said; a text, and what leads on. */
  refuse(said?: { readonly title: string; readonly text: string; readonly more?: Node }): void {
    this.#refused = true;
    if (said) this.#say(said.title, said.text, ...(said.more ? [said.more] : []));
  }

  /** There are lines again, or there may be. */
  allow(): void {
    this.#refused = false;
  }

  #say(title: string, text: string, ...more: Node[]): void {
    this.#place.hidden = false;
    this.#place.replaceChildren(element("h2", {}, title), element("p", {}, text), ...more);
  }
}
