// Creates elements and sends requests. Attributes and children are text: no string is parsed as HTML.

const SHOWN_FOR = 4000;
/** Event on the document when the server gave no answer. */
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
 * Make the children of `place` equal to these nodes, and keep the nodes that already match: focus and half-finished
 * clicks survive. Listeners belong on `place`.
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

/** Show a short message for a few seconds; screen readers read it. */
export function toast(text) {
  const shown = element("div", { class: "toast" }, text);
  find("toasts").append(shown);
  setTimeout(() => shown.remove(), SHOWN_FOR);
}

/** The server's answer. After an error, show it and return null. */
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
    toast(told.message ?? `The server responded with status ${answer.status}`);
  } catch {
    document.dispatchEvent(new Event(UNREACHABLE));
    toast("Cannot reach the server");
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
