/**
 * The user of this tab: a sample user with a token from the development server, or a pasted token.
 *
 * Stored in the tab's session storage, which ends with the tab; never in an address, which lands in histories and logs.
 */

import { element } from "@aftercommit/ui";

import { sampleOf, usersOf, type SampleUser } from "./sample.js";

export interface Reading {
  readonly user: string;
  readonly token: string;
}

export interface SessionOptions {
  /** Key in the session storage. */
  readonly key: string;
  readonly root: URL;
  /** The system whose sample users are offered. */
  readonly system: string;
  readonly question: string;
  /** What to paste where there are no sample users. */
  readonly needed: string;
  /** Label of the button below a pasted token. */
  readonly begin: string;
}

export class Session {
  constructor(readonly options: SessionOptions) {}

  kept(): Reading | null {
    try {
      const kept = JSON.parse(sessionStorage.getItem(this.options.key) ?? "null") as Partial<Reading> | null;
      return typeof kept?.user === "string" && typeof kept.token === "string"
        ? { user: kept.user, token: kept.token }
        : null;
    } catch {
      return null;
    }
  }

  keep(reading: Reading): void {
    try {
      sessionStorage.setItem(this.options.key, JSON.stringify(reading));
    } catch {
      // Storage may be forbidden; then the choice lasts until the page is closed.
    }
  }

  /** A new token for the same sample user after a refusal; the old one if there is none. */
  async renewed(reading: Reading): Promise<Reading> {
    const found = (await this.users()).find(({ user }) => user === reading.user);
    if (!found) return reading;
    const fresh = { user: found.user, token: found.token };
    this.keep(fresh);
    return fresh;
  }

  async users(): Promise<readonly SampleUser[]> {
    return usersOf(await sampleOf(this.options.root), this.options.system);
  }

  /** Ask for a user and say why. Resolves with the choice, or null when the dialog was closed. */
  async ask(dialog: HTMLDialogElement, why: string, now: Reading | null): Promise<Reading | null> {
    const users = await this.users();
    return new Promise((resolve) => {
      let chosen: Reading | null = null;
      const choose = (reading: Reading): void => {
        chosen = reading;
        this.keep(reading);
        dialog.close();
      };
      dialog.replaceChildren(
        element("h2", { id: "readers-title" }, this.options.question),
        ...(why === "" ? [] : [element("p", { class: "said" }, why)]),
        users.length > 0 ? people(users, now, choose) : this.#pasted(choose),
      );
      dialog.addEventListener("close", () => resolve(chosen), { once: true });
      if (!dialog.open) dialog.showModal();
    });
  }

  #pasted(choose: (reading: Reading) => void): HTMLElement {
    const field = element("textarea", {
      class: "field token",
      required: true,
      spellcheck: "false",
      autocomplete: "off",
    });
    const form = element(
      "form",
      {},
      element("p", { class: "soft" }, `${this.options.needed} It is kept in this tab only.`),
      element("label", { class: "stacked" }, "Token ", field),
      element("p", { class: "ends" }, element("button", { class: "button main" }, this.options.begin)),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      // Pasted text may have spaces and line breaks; a header must not.
      const token = field.value.replace(/^\s*bearer\s+/i, "").replace(/\s+/g, "");
      if (token !== "") choose({ user: "token", token });
    });
    return form;
  }
}

function people(users: readonly SampleUser[], now: Reading | null, choose: (reading: Reading) => void): HTMLElement {
  const choices = users.map(({ user, name, about, token }) => {
    const attributes = { class: "button", type: "button", "aria-pressed": String(user === now?.user) };
    const button = element("button", attributes, element("strong", {}, name ?? user), element("small", {}, about));
    button.addEventListener("click", () => choose({ user, token }));
    return element("li", {}, button);
  });
  const list = element("ul", { class: "people" }, ...choices);
  const said = "This is a development server with sample users. Each has its own token.";
  return element("div", {}, element("p", { class: "soft" }, said), list);
}
