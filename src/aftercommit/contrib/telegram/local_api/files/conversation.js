// One chat: its user, the messages, and the composer.

import { link, rendered, webAddress } from "./formatting.js";
import { clock, day, element, find, toServer } from "./parts.js";

const AT_THE_END = 40;
let writing = Promise.resolve();
const drawn = { chat: null, nodes: new Map() };

export function initialiseConversation(state) {
  const text = find("text");
  find("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    void write(state);
  });
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    void write(state);
  });
  text.addEventListener("input", () => fit(text));
  find("block").addEventListener("click", () => {
    const chat = state.chats.get(state.selected);
    void toServer("PUT", `control/chats/${chat.id}/blocked`, { blocked: !chat.blocked });
  });
  find("forget").addEventListener("click", () => {
    const chat = state.chats.get(state.selected);
    const question = `Delete the chat with ${chat.first_name}? The bot will get "chat not found" from then on.`;
    if (confirm(question)) void toServer("DELETE", `control/chats/${chat.id}`);
  });
  const messages = find("messages");
  messages.addEventListener("scroll", () => (find("latest").hidden = isAtEnd(messages)));
  find("latest").addEventListener("click", () => toEnd(messages));
}

/** Fit the height to the text, up to six rows. */
function fit(text) {
  text.rows = Math.min(6, text.value.split("\n").length);
}

/** Clear the composer at once; messages are sent one after the other, in the order they were written. */
async function write(state) {
  const text = find("text");
  const message = text.value;
  const chat = state.selected;
  if (!message.trim() || chat === null) return;
  put(text, "");
  writing = writing.then(() => toServer("POST", `control/chats/${chat}/messages`, { text: message }));
  if (await writing) toEnd(find("messages"));
  // Put an unsent text back, so that it can be sent again.
  else if (text.value === "" && chat === state.selected) put(text, message);
}

function put(text, value) {
  text.value = value;
  fit(text);
}

/** Fill in the composer; false when no chat is open. */
export function prefill(text) {
  if (find("chat").hidden) return false;
  put(find("text"), text);
  find("text").focus();
  return true;
}

export function drawConversation(state) {
  const chat = state.chats.get(state.selected);
  find("chat").hidden = chat === undefined;
  find("nothing").hidden = chat !== undefined;
  if (chat === undefined) {
    drawn.chat = null;
    return;
  }
  const about = [chat.username && `@${chat.username}`, `chat ${chat.id}`, chat.language_code];
  find("person-name").textContent = chat.first_name;
  find("person-initial").textContent = [...chat.first_name][0];
  find("person-about").textContent = about.filter(Boolean).join(" · ");
  find("block").setAttribute("aria-pressed", String(chat.blocked));
  find("block").textContent = chat.blocked ? "Unblock the bot" : "Block the bot";
  find("is-blocked").hidden = !chat.blocked;
  find("text").disabled = chat.blocked;
  find("send").disabled = chat.blocked;
  drawMessages(chat.id, [...(state.messages.get(chat.id)?.values() ?? [])]);
}

function drawMessages(chat, messages) {
  const place = find("messages");
  const wasAtEnd = drawn.chat !== chat || isAtEnd(place);
  if (drawn.chat !== chat) {
    drawn.chat = chat;
    drawn.nodes = new Map();
    place.replaceChildren();
  }
  let before = null;
  const wanted = [];
  for (const message of messages) {
    const today = day(message.date);
    if (today !== before) wanted.push(kept(`day ${today}`, today, () => element("p", { class: "day" }, today)));
    before = today;
    const key = `message ${message.message_id}`;
    wanted.push(kept(key, message.edit_date ?? 0, () => bubble(message)));
  }
  // Keep existing nodes, so that a selection and opened spoilers survive.
  for (const node of [...place.children]) if (!wanted.includes(node)) node.remove();
  wanted.forEach((node, index) => {
    if (place.children[index] !== node) place.insertBefore(node, place.children[index] ?? null);
  });
  if (wasAtEnd) toEnd(place);
  else find("latest").hidden = false;
}

function kept(key, version, make) {
  const known = drawn.nodes.get(key);
  if (known?.version === version) return known.node;
  const node = make();
  drawn.nodes.set(key, { version, node });
  return node;
}

function bubble(message) {
  const onCommand = (text) => prefill(text);
  const when = new Date(message.date * 1000).toISOString();
  const time = element("time", { datetime: when, title: new Date(message.date * 1000).toLocaleString() }, clock(message.date));
  const quoted = message.reply_to_message?.text;
  return element(
    "article",
    { class: message.from_bot ? "bubble bot" : "bubble person", "data-message": message.message_id },
    element("span", { class: "unseen" }, message.from_bot ? "Bot: " : "User: "),
    quoted && element("p", { class: "quoted" }, quoted),
    element("div", { class: "text" }, ...rendered(message.text, message.entities ?? [], onCommand)),
    keyboard(message.reply_markup, onCommand),
    element("p", { class: "meta" }, message.edit_date ? "edited " : "", time),
  );
}

function keyboard(markup, onCommand) {
  const rows = markup?.inline_keyboard ?? markup?.keyboard;
  if (!Array.isArray(rows)) return null;
  return element("div", { class: "keyboard" }, ...rows.map((row) => element("div", {}, ...row.map((key) => button(key, onCommand)))));
}

function button(key, onCommand) {
  const text = typeof key === "string" ? key : String(key.text ?? "");
  if (key.url && webAddress(key.url)) {
    const made = link(key.url, [text]);
    made.className = "button";
    return made;
  }
  const made = element("button", { class: "button", type: "button", disabled: key.callback_data ? "" : undefined }, text);
  made.addEventListener("click", () => onCommand(text));
  return made;
}

export function drawCommands(state) {
  const place = find("commands");
  const names = state.commands.map(({ command }) => command).join(" ");
  if (place.dataset.names === names) return;
  place.dataset.names = names;
  place.replaceChildren(
    ...state.commands.map(({ command, description }) => {
      const made = element("button", { class: "button quiet", type: "button", title: description }, `/${command}`);
      made.addEventListener("click", () => prefill(`/${command}`));
      return made;
    }),
  );
}

function isAtEnd(place) {
  return place.scrollHeight - place.scrollTop - place.clientHeight < AT_THE_END;
}

function toEnd(place) {
  place.scrollTop = place.scrollHeight;
  find("latest").hidden = true;
}
