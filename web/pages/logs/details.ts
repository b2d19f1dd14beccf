/** The panel with all fields of one line. */

import { copyText, element, toast, type Child } from "@aftercommit/ui";

import { asText, type Line } from "./line.js";

export interface DetailEvents {
  share(line: Line): void;
  close(): void;
}

export class Details {
  #line: Line | null = null;

  constructor(
    readonly panel: HTMLElement,
    readonly events: DetailEvents,
  ) {}

  get open(): boolean {
    return !this.panel.hidden;
  }

  show(line: Line): void {
    if (line === this.#line && this.open) return;
    this.#line = line;
    this.panel.hidden = false;
    this.panel.replaceChildren(this.#header(line), this.#actions(line), fields(line));
    this.panel.scrollTop = 0;
  }

  hide(): void {
    this.panel.hidden = true;
    this.#line = null;
  }

  #header(line: Line): HTMLElement {
    const close = button("✕", "button quiet icon", () => this.events.close());
    close.setAttribute("aria-label", "Close the panel");
    close.title = "Close (Esc)";
    const title = element("h2", {}, `Line ${line.log.seq.toLocaleString()}`);
    return element("header", {}, title, element("span", { class: "grow" }), close);
  }

  #actions(line: Line): HTMLElement {
    return element(
      "div",
      { class: "actions" },
      button("Copy line", "button", () => void copied("Line", asText(line))),
      button("Copy JSON", "button", () => void copied("JSON", JSON.stringify(line.log, null, 2))),
      button("Copy link", "button", () => this.events.share(line)),
    );
  }
}

/** Copy a text and show whether it worked. */
export async function copied(what: string, text: string): Promise<void> {
  toast((await copyText(text)) ? `${what} copied` : `${what} not copied: your browser does not allow it`);
}

function button(label: string, looks: string, act: () => void): HTMLButtonElement {
  const made = element("button", { class: looks, type: "button" }, label);
  made.addEventListener("click", act);
  return made;
}

function fields(line: Line): HTMLElement {
  const { log } = line;
  const list = element("dl");
  const add = (term: string, value: Child | null | undefined, wide = false): void => {
    if (value === null || value === undefined || value === "") return;
    const looks = wide ? "wide" : undefined;
    list.append(element("dt", { class: looks }, term), element("dd", { class: looks }, value));
  };
  add("Message", element("pre", {}, log.message), true);
  if (line.gap !== undefined) add("Missing before", line.gap);
  add("Level", log.level);
  add("Time", `${new Date(line.time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" })}`);
  add("Server time", element("code", {}, log.ts));
  add("Source", log.source);
  add("Service", log.service);
  add("Correlation", log.correlation_id ? element("code", {}, log.correlation_id) : null);
  add("Event id", element("code", {}, log.event_id));
  const context = log.context ?? {};
  if (Object.keys(context).length > 0) add("Context", element("pre", {}, JSON.stringify(context, null, 2)), true);
  return list;
}
