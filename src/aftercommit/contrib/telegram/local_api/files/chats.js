// The chats of the local Bot API server. Reads its stream of changes and calls its control routes.

import { element, find, renew, toServer } from "./parts.js";
import { follow } from "./live.js";
import { drawAnswers, drawSwitches, initialisePanel } from "./panel.js";
import { drawCommands, drawConversation, initialiseConversation, prefill } from "./conversation.js";

const state = {
  bot: { first_name: "Bot", username: "" },
  ways: [],
  chats: new Map(),
  messages: new Map(),
  calls: new Map(),
  switches: [],
  commands: [],
  selected: null,
  unread: new Map(),
};
const MOST_CALLS = 200;
// The text to fill into the next chat that is opened.
let toWrite = null;
const THEMES = ["system", "light", "dark"];
const NAMES = { system: "System", light: "Light", dark: "Dark" };

function take(told, isAll) {
  if (isAll) {
    state.bot = told.bot;
    state.ways = told.ways;
    state.chats.clear();
    state.messages.clear();
    state.calls.clear();
  }
  state.switches = told.switches;
  state.commands = told.commands;
  for (const chat of told.chats) state.chats.set(chat.id, chat);
  for (const message of told.messages) takeMessage(message, isAll);
  for (const call of told.calls) state.calls.set(call.call, call);
  for (const number of [...state.calls.keys()].slice(0, -MOST_CALLS)) state.calls.delete(number);
  const there = new Set(told.there);
  for (const id of [...state.chats.keys()]) {
    if (there.has(id)) continue;
    state.chats.delete(id);
    state.messages.delete(id);
    if (state.selected === id) select(null);
  }
}

function takeMessage(message, isAll) {
  const chat = message.chat.id;
  if (!state.messages.has(chat)) state.messages.set(chat, new Map());
  const known = state.messages.get(chat);
  const isNew = !known.has(message.message_id);
  known.set(message.message_id, message);
  if (isNew && !isAll && message.from_bot && chat !== state.selected) {
    state.unread.set(chat, (state.unread.get(chat) ?? 0) + 1);
  }
}

function draw() {
  find("bot-name").textContent = state.bot.first_name;
  find("bot-username").textContent = state.bot.username ? `@${state.bot.username}` : "";
  drawWays();
  drawChats();
  drawConversation(state);
  drawCommands(state);
  drawSwitches(state);
  drawAnswers(state);
  const unread = [...state.unread.values()].reduce((one, other) => one + other, 0);
  document.title = unread > 0 ? `(${unread}) Chats` : "Chats";
}

/** Links back to the site. Drawn only when they change, so that they keep the focus. */
function drawWays() {
  const shown = find("ways");
  const drawn = [...shown.children].map((way) => ({ label: way.textContent, href: way.getAttribute("href") }));
  if (JSON.stringify(drawn) === JSON.stringify(state.ways)) return;
  shown.replaceChildren(...state.ways.map(({ label, href }) => element("a", { href }, label)));
  shown.hidden = state.ways.length === 0;
}

function drawChats() {
  const latest = (id) => [...(state.messages.get(id)?.values() ?? [])].at(-1);
  const items = [...state.chats.values()].map((chat) => {
    const message = latest(chat.id);
    const unread = state.unread.get(chat.id) ?? 0;
    const preview = message ? `${message.from_bot ? "" : "You: "}${message.text}` : "No messages yet";
    const button = element(
      "button",
      { type: "button", class: "chat", "aria-current": chat.id === state.selected && "true", "data-chat": chat.id },
      element("span", { class: "avatar", "aria-hidden": "true" }, [...chat.first_name][0]),
      element(
        "span",
        { class: "summary" },
        element("span", { class: "name" }, chat.first_name, chat.blocked && element("span", { class: "tag" }, "blocked")),
        element("span", { class: "preview" }, preview),
      ),
      unread > 0 && element("span", { class: "count", "aria-label": `${unread} new` }, String(unread)),
    );
    return element("li", {}, button);
  });
  renew(find("chats"), items);
  find("no-chats").hidden = items.length > 0;
}

function initialiseChats() {
  find("chats").addEventListener("click", (event) => {
    const button = event.target.closest("[data-chat]");
    if (button) select(Number(button.dataset.chat), true);
  });
}

function select(id, byHand = false) {
  state.selected = id;
  state.unread.delete(id);
  document.body.dataset.view = id === null ? "list" : "chat";
  history.replaceState(null, "", id === null ? location.pathname : `#${id}`);
  draw();
  if (byHand && id !== null) find("text").focus();
}

// --- the stream

function hear(told, isAll) {
  take(told, isAll);
  if (isAll) openAsked();
  draw();
}

/**
 * Open what the address names, once: the chat `#700000001`; with `?start=CODE&as=Ada` Ada's chat or a new one for her,
 * with the command filled in but not sent.
 */
function openAsked() {
  const parameters = new URLSearchParams(location.search);
  const start = parameters.get("start");
  const person = parameters.get("as");
  const named = [...state.chats.values()].find((chat) => chat.first_name === person)?.id;
  const only = state.chats.size === 1 ? [...state.chats.keys()][0] : undefined;
  const wanted = [named, Number(location.hash.slice(1)), person ? undefined : only].find((id) => state.chats.has(id));
  if (start) history.replaceState(null, "", location.pathname + location.hash);
  if (wanted !== undefined) select(wanted);
  toWrite = start && `/start ${start}`;
  if (!start) return;
  if (wanted !== undefined) writeAsked();
  else {
    find("first-name").value = person ?? "";
    find("opening").showModal();
  }
}

function writeAsked() {
  if (toWrite && prefill(toWrite)) toWrite = null;
}

/** Follow the address when the user edits it or goes back. */
function followAddress() {
  addEventListener("hashchange", () => {
    const wanted = Number(location.hash.slice(1));
    if (state.chats.has(wanted) && wanted !== state.selected) select(wanted);
  });
}

// --- new chats, colours, narrow windows

function initialiseOpening() {
  const dialog = find("opening");
  find("new-chat").addEventListener("click", () => dialog.showModal());
  find("opening-cancel").addEventListener("click", () => dialog.close());
  find("opening-form").addEventListener("submit", (event) => {
    event.preventDefault();
    void open(dialog);
  });
}

async function open(dialog) {
  const language = find("language").value;
  const begin = find("opening-begin");
  // A double click opens one chat.
  if (begin.disabled) return;
  begin.disabled = true;
  const chat = await toServer("POST", "control/chats", {
    first_name: find("first-name").value,
    ...(language && { language_code: language }),
  });
  begin.disabled = false;
  if (!chat) return;
  dialog.close();
  find("opening-form").reset();
  state.chats.set(chat.id, chat);
  select(chat.id, true);
  writeAsked();
}

function initialiseTheme() {
  const shown = () => document.documentElement.dataset.theme ?? "system";
  const name = find("theme-name");
  name.textContent = NAMES[shown()];
  find("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(shown()) + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    name.textContent = NAMES[next];
    try {
      localStorage.setItem("aftercommit.theme", next);
    } catch {
      // Storage may be forbidden; then the choice lasts until the page is closed.
    }
  });
}

function initialiseNarrow() {
  const button = find("show-panel");
  button.addEventListener("click", () => {
    const isOpen = document.body.classList.toggle("with-panel");
    button.setAttribute("aria-expanded", String(isOpen));
  });
  find("back").addEventListener("click", () => select(null));
}

initialiseTheme();
initialiseNarrow();
initialiseOpening();
initialiseChats();
followAddress();
initialiseConversation(state);
initialisePanel(state);
follow("control/events", { everything: (told) => hear(told, true), news: (told) => hear(told, false) });
