// Elements from code, and requests to the server. Attributes and children are text: no string is ever read as HTML.

const SHOWN_FOR = 4000;
/** Said to the document when the server gave no answer. */
export const UNREACHABLE = "unreachable";

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false && value !== null) made.setAttribute(name, String(value));
  }
  made.append(...children.filter((child) => child !== false && child !== null && child !== undefined));
  return made;
}

export function find(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`The page has no element with the id "${id}".`);
  return found;
}

/**
 * Make what is shown in a place like these nodes, and leave alone what is so already: a click that has begun on a part
 * ends on it, and what has the focus keeps it. Who listens to the parts listens at the place.
 */
export function renew(place, nodes) {
  const shown = [...place.childNodes];
  nodes.forEach((node, index) => {
    const before = shown[index];
    if (before === undefined) place.append(node);
    else if (before.nodeName !== node.nodeName) before.replaceWith(node);
    else if (node instanceof Element) renewElement(before, node);
    else if (before.data !== node.data) before.data = node.data;
  });
  for (const left of shown.slice(nodes.length)) left.remove();
}

function renewElement(before, node) {
  if (before.isEqualNode(node)) return;
  for (const { name } of [...before.attributes]) if (!node.hasAttribute(name)) before.removeAttribute(name);
  for (const { name, value } of node.attributes) before.setAttribute(name, value);
  renew(before, [...node.childNodes]);
}

/** A short word that is read out too, and gone by itself. */
export function toast(text) {
  const shown = element("div", { class: "toast" }, text);
  find("toasts").append(shown);
  setTimeout(() => shown.remove(), SHOWN_FOR);
}

/** The server's answer, or null when it refused; why is shown. */
export async function toServer(method, path, body) {
  const options = { method, cache: "no-store" };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  try {
    const answer = await fetch(path, options);
    const told = answer.status === 204 ? {} : await answer.json();
    if (answer.ok) return told;
    toast(told.message ?? `The server answered ${answer.status}`);
  } catch {
    document.dispatchEvent(new Event(UNREACHABLE));
    toast("The server cannot be reached");
  }
  return null;
}

export function clock(seconds, withSeconds = false) {
  const options = { hour: "2-digit", minute: "2-digit", ...(withSeconds && { second: "2-digit" }) };
  return new Date(seconds * 1000).toLocaleTimeString([], options);
}

export function day(seconds) {
  return new Date(seconds * 1000).toLocaleDateString([], { weekday: "long", day: "numeric", month: "long" });
}
