/**
 * Who reads: a sample user whose token the development server hands out, or a token that was pasted.
 *
 * Kept in the tab's own storage, which ends with the tab; never in an address, which ends in histories and logs.
 */

import { element } from "@aftercommit/ui";

import { sampleOf, type SampleUser } from "../shared/sample.js";

export interface Reading {
  readonly user: string;
  readonly token: string;
}

const KEY = "aftercommit.reading";

export function keptReading(): Reading | null {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Partial<Reading> | null;
    return typeof kept?.user === "string" && typeof kept.token === "string"
      ? { user: kept.user, token: kept.token }
      : null;
  } catch {
    return null;
  }
}

export function keepReading(reading: Reading): void {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(reading));
  } catch {
    // Storage may be forbidden: then the choice lasts as long as the page.
  }
}

/** A fresh token for the same sample user, after one was refused; the old one when there is no fresh one. */
export async function renewed(reading: Reading): Promise<Reading> {
  const users = await sampleOf("../").then((sample) => sample?.users ?? []);
  const found = users.find(({ user }) => user === reading.user);
  if (!found) return reading;
  const fresh = { user: found.user, token: found.token };
  keepReading(fresh);
  return fresh;
}

/** Ask who reads, with a word on why; resolves with the choice. Closing the dialog without one resolves with null. */
export async function askWhoReads(
  dialog: HTMLDialogElement,
  why: string,
  now: Reading | null,
): Promise<Reading | null> {
  const users = (await sampleOf("../"))?.users ?? [];
  return new Promise((resolve) => {
    let chosen: Reading | null = null;
    const choose = (reading: Reading): void => {
      chosen = reading;
      keepReading(reading);
      dialog.close();
    };
    dialog.replaceChildren(
      element("h2", { id: "readers-title" }, "Who is reading?"),
      ...(why === "" ? [] : [element("p", { class: "said" }, why)]),
      users.length > 0 ? people(users, now, choose) : pasted(choose),
    );
    dialog.addEventListener("close", () => resolve(chosen), { once: true });
    if (!dialog.open) dialog.showModal();
  });
}

function people(users: readonly SampleUser[], now: Reading | null, choose: (reading: Reading) => void): HTMLElement {
  const choices = users.map(({ user, about, token }) => {
    const attributes = { class: "button", type: "button", "aria-pressed": String(user === now?.user) };
    const button = element("button", attributes, element("strong", {}, user), element("small", {}, about));
    button.addEventListener("click", () => choose({ user, token }));
    return element("li", {}, button);
  });
  const list = element("ul", { class: "people" }, ...choices);
  const said = "This is a development server. These users are made up; each has a token of its own.";
  return element("div", {}, element("p", { class: "soft" }, said), list);
}

function pasted(choose: (reading: Reading) => void): HTMLElement {
  const field = element("textarea", { class: "field", required: true, spellcheck: "false", autocomplete: "off" });
  const form = element(
    "form",
    {},
    element("p", { class: "soft" }, "Paste a token that may read this investigation. It is kept in this tab only."),
    element("label", { class: "stacked" }, "Token ", field),
    element("p", { class: "ends" }, element("button", { class: "button main" }, "Read")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    // Blanks and line ends come with pasting; a header takes neither.
    const token = field.value.replace(/^\s*bearer\s+/i, "").replace(/\s+/g, "");
    if (token !== "") choose({ user: "token", token });
  });
  return form;
}
