// Renders a message: Telegram's entities over its text. No string is parsed as HTML, and only http(s) addresses become
// links. Offsets count UTF-16 code units, as JavaScript's strings do.

const TAGS = {
  bold: "strong",
  italic: "em",
  underline: "u",
  strikethrough: "s",
  code: "code",
  pre: "pre",
  blockquote: "blockquote",
  expandable_blockquote: "blockquote",
};

/** The text with its entities as nodes. `onCommand` is called with a command that is clicked. */
export function rendered(text, entities, onCommand) {
  const sorted = [...entities].sort((one, other) => one.offset - other.offset || other.length - one.length);
  return nodes(text, 0, text.length, sorted, onCommand);
}

function nodes(text, begin, end, entities, onCommand) {
  const made = [];
  let at = begin;
  let index = 0;
  while (index < entities.length) {
    const entity = entities[index];
    const from = Math.max(entity.offset, at);
    const until = Math.min(entity.offset + entity.length, end);
    // Entities that begin inside this one are nested in it.
    let next = index + 1;
    while (next < entities.length && entities[next].offset < until) next += 1;
    if (until > from) {
      if (from > at) made.push(text.slice(at, from));
      const inner = nodes(text, from, until, entities.slice(index + 1, next), onCommand);
      made.push(wrapped(entity, text.slice(from, until), inner, onCommand));
      at = until;
    }
    index = next;
  }
  if (at < end) made.push(text.slice(at, end));
  return made;
}

function wrapped(entity, text, inner, onCommand) {
  if (entity.type === "text_link" || entity.type === "url") return link(entity.url ?? text, inner);
  if (entity.type === "bot_command") return command(text, onCommand);
  if (entity.type === "spoiler") return spoiler(inner);
  const tag = TAGS[entity.type];
  const made = document.createElement(tag ?? "span");
  made.append(...inner);
  if (entity.language) made.dataset.language = entity.language;
  return made;
}

/** The address if it is http or https, otherwise null. */
export function webAddress(address) {
  try {
    const url = new URL(address);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

export function link(address, inner) {
  const href = webAddress(address);
  if (href === null) {
    const made = document.createElement("span");
    made.title = address;
    made.append(...inner);
    return made;
  }
  const made = document.createElement("a");
  made.href = href;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  made.append(...inner);
  return made;
}

function command(text, onCommand) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "command";
  made.textContent = text;
  made.addEventListener("click", () => onCommand(text));
  return made;
}

function spoiler(inner) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "spoiler";
  made.setAttribute("aria-label", "Show hidden text");
  made.append(...inner);
  made.addEventListener("click", () => {
    made.classList.add("shown");
    made.removeAttribute("aria-label");
  });
  return made;
}
