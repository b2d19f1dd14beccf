/** The first page: what runs here, who can read it, and where to go on. */

import { copyText, element, find, initialiseTheme, nextTheme, toast, type Theme } from "@aftercommit/ui";

import { sampleOf, type Sample, type SampleSystem, type SampleUser } from "../shared/sample.js";

const NAMES: Readonly<Record<Theme, string>> = { system: "System", light: "Light", dark: "Dark" };

function systemCard({ title, about, links }: SampleSystem): HTMLElement {
  const anchors = links.map(({ href, label }) => element("a", { href }, label));
  return element(
    "article",
    { class: "card" },
    element("h3", {}, title),
    element("p", { class: "soft" }, about),
    element("p", { class: "links" }, ...anchors),
  );
}

function userCard({ user, about, token }: SampleUser): HTMLElement {
  const copy = element("button", { class: "button", type: "button" }, "Copy token");
  copy.addEventListener("click", () => {
    void copyText(token).then((done) => toast(done ? "Token copied" : "The browser does not allow copying"));
  });
  return element(
    "article",
    { class: "card" },
    element("h3", {}, user),
    element("p", { class: "soft" }, about),
    element("p", {}, copy),
  );
}

function show(sample: Sample | null): void {
  const systems = sample?.systems ?? [];
  const none = "This server says nothing about itself. Its API is described below.";
  find("systems", HTMLElement).replaceChildren(
    ...(systems.length > 0 ? systems.map(systemCard) : [element("p", { class: "soft" }, none)]),
  );
  const users = sample?.users ?? [];
  find("users-section", HTMLElement).hidden = users.length === 0;
  find("users", HTMLElement).replaceChildren(...users.map(userCard));
}

const name = find("theme-name", HTMLElement);
name.textContent = NAMES[initialiseTheme()];
find("theme", HTMLButtonElement).addEventListener("click", () => (name.textContent = NAMES[nextTheme()]));
show(await sampleOf(""));
