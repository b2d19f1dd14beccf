/** Form fields with a label and an error message. */

import { element } from "@aftercommit/ui";

import { type Directory } from "./directory.js";

export type Input = HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;

/** A field with its label, hint and error message, connected for screen readers. */
export class Labelled<Kind extends Input> {
  readonly whole: HTMLElement;
  readonly #wrong: HTMLElement;

  constructor(
    readonly field: Kind,
    label: string,
    hint = "",
  ) {
    const id = `field-${(Labelled.#made += 1)}`;
    field.id = id;
    this.#wrong = element("p", { class: "wrong", id: `${id}-wrong`, hidden: true });
    const told = element("p", { class: "field-hint", id: `${id}-hint`, hidden: hint === "" }, hint);
    field.setAttribute("aria-describedby", `${id}-wrong ${id}-hint`);
    field.addEventListener("input", () => this.wrong(""));
    this.whole = element(
      "div",
      { class: "labelled-field" },
      element("label", { for: id }, label),
      field,
      told,
      this.#wrong,
    );
  }

  static #made = 0;

  get text(): string {
    return this.field.value.trim();
  }

  /** Show an error; an empty text removes it. */
  wrong(text: string): void {
    this.#wrong.textContent = text;
    this.#wrong.hidden = text === "";
    if (text === "") this.field.removeAttribute("aria-invalid");
    else this.field.setAttribute("aria-invalid", "true");
  }

  /** Whether the field is filled in. If not, show this error and focus the field. */
  demand(text: string): boolean {
    if (this.text !== "") return true;
    this.wrong(text);
    this.field.focus();
    return false;
  }
}

/** A menu of people. Its first option, `none`, is empty. */
export function peopleField(directory: Directory, none: string, without: number | null = null): HTMLSelectElement {
  const people = directory.people.filter(({ user_id }) => user_id !== without);
  const options = people.map(({ user_id, name, roles }) => {
    const known = roles.map((role) => role.name).join(", ");
    const you = directory.isMe(user_id) ? " (you)" : "";
    return element("option", { value: user_id }, `${name}${you}${known === "" ? "" : ` · ${known}`}`);
  });
  return element("select", { class: "field" }, element("option", { value: "" }, none), ...options);
}

/** An error that the user has to read. */
export function notice(text: string): HTMLElement {
  return element("p", { class: "notice", role: "alert" }, text);
}
