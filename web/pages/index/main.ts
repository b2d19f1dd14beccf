/** The home page: the systems, their sample users, and links. */

import { copyText, element, find, toast, wireThemeButton } from "@aftercommit/ui";

import { rootOfSite } from "../shared/root.js";
import {
  sampleOf,
  usersOf,
  type Sample,
  type SampleLink,
  type SampleSystem,
  type SampleUser,
} from "../shared/sample.js";

function systemCard({ title, about, links }: SampleSystem, more: readonly SampleLink[]): HTMLElement {
  const anchors = [...links, ...more].map(({ href, label }) => element("a", { href }, label));
  return element(
    "article",
    { class: "card" },
    element("h3", {}, title),
    element("p", { class: "soft" }, about),
    element("p", { class: "links" }, ...anchors),
  );
}

function userCard({ user, name, about, token }: SampleUser): HTMLElement {
  const label = `Copy the token of ${name ?? user}`;
  const copy = element("button", { class: "button", type: "button", "aria-label": label }, "Copy token");
  copy.addEventListener("click", () => {
    void copyText(token).then((done) => toast(done ? "Token copied" : "Your browser does not allow copying"));
  });
  const number = name === undefined ? [] : [element("span", { class: "soft" }, ` user ${user}`)];
  return element(
    "li",
    { class: "user" },
    element("p", {}, element("strong", {}, name ?? user), ...number),
    element("p", { class: "soft" }, about),
    copy,
  );
}

/** The sample users of one system. */
function usersCard(system: SampleSystem, users: readonly SampleUser[]): HTMLElement {
  return element(
    "article",
    { class: "card" },
    element("h3", {}, system.title),
    element("ul", { class: "users" }, ...users.map(userCard)),
  );
}

function show(sample: Sample | null): void {
  const systems = sample?.systems ?? [];
  // The bot sends the activity of the task tracker.
  const chats = sample?.chats ? [{ href: sample.chats, label: "Bot chats (local Telegram)" }] : [];
  const cardOf = (system: SampleSystem): HTMLElement => systemCard(system, system.name === "tasks" ? chats : []);
  const none = "This server lists no systems. See the API reference below.";
  find("systems", HTMLElement).replaceChildren(
    ...(systems.length > 0 ? systems.map(cardOf) : [element("p", { class: "soft" }, none)]),
  );
  const groups = systems.map((system) => ({ system, users: usersOf(sample, system.name) }));
  const peopled = groups.filter(({ users }) => users.length > 0);
  find("users-section", HTMLElement).hidden = peopled.length === 0;
  find("users", HTMLElement).replaceChildren(...peopled.map(({ system, users }) => usersCard(system, users)));
}

wireThemeButton();
show(await sampleOf(rootOfSite()));
