/** Creates elements. Attributes and text are set as text: no string is parsed as HTML. */

export type Child = Node | string;

type Attributes = Readonly<Record<string, string | number | boolean | undefined>>;

/** `element("button", { class: "button", type: "button" }, "Copy")`. False and undefined leave an attribute out. */
export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children);
  return made;
}

/** The element with this id and class. Throws if the page has none. */
export function find<Kind extends HTMLElement>(id: string, kind: abstract new () => Kind): Kind {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`The page has no ${kind.name} with the id "${id}".`);
  return found;
}
