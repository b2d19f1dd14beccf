/** One row of the list, reused for every line that scrolls by. */

import { element } from "@aftercommit/ui";

import { clockTime, type Line } from "./line.js";
import { pieces } from "./search.js";

export interface Look {
  /** The search text in lower case; "" for none. */
  readonly wanted: string;
  /** The `seq` of the current match. */
  readonly match: number | undefined;
  /** The `seq` of the selected line. */
  readonly active: number | undefined;
}

export function rowId(seq: number): string {
  return `line-${seq}`;
}

export class Row {
  readonly element: HTMLElement;
  readonly #time = element("span", { class: "time", role: "gridcell" });
  readonly #level = element("span", { class: "level", role: "gridcell" });
  readonly #source = element("span", { class: "source", role: "gridcell" });
  readonly #service = element("span", { class: "service", role: "gridcell" });
  readonly #message = element("span", { class: "message", role: "gridcell" });
  #line: Line | undefined;
  #look = "";

  constructor() {
    this.element = element("div", { class: "row", role: "row" });
    this.element.append(this.#time, this.#level, this.#source, this.#service, this.#message);
  }

  /** `index`: position among the loaded lines. */
  show(line: Line, index: number, height: number, look: Look): void {
    this.element.style.transform = `translateY(${index * height}px)`;
    this.element.setAttribute("aria-rowindex", String(index + 2));
    const seq = line.log.seq;
    const marks = `${look.wanted}\n${seq === look.match}\n${seq === look.active}\n${line.gap ?? ""}`;
    if (line === this.#line && marks === this.#look) return;
    if (line !== this.#line) this.#fill(line);
    this.#line = line;
    this.#look = marks;
    this.element.classList.toggle("active", seq === look.active);
    this.element.setAttribute("aria-selected", String(seq === look.active));
    this.element.classList.toggle("match", seq === look.match);
    this.#message.replaceChildren(...this.#messageNodes(line, look.wanted));
  }

  get seq(): number | undefined {
    return this.#line?.log.seq;
  }

  #fill(line: Line): void {
    const { log } = line;
    this.element.id = rowId(log.seq);
    this.element.dataset["level"] = log.level;
    this.element.dataset["seq"] = String(log.seq);
    this.#time.textContent = clockTime(line.time);
    this.#time.title = log.ts;
    this.#level.textContent = log.level;
    this.#source.textContent = log.source;
    this.#service.textContent = log.service;
    this.#service.title = log.service;
  }

  #messageNodes(line: Line, wanted: string): (Node | string)[] {
    const nodes: (Node | string)[] = pieces(line.text, wanted).map((piece) =>
      piece.marked ? element("mark", {}, piece.text) : piece.text,
    );
    if (line.gap !== undefined) nodes.unshift(element("span", { class: "gap" }, line.gap));
    return nodes;
  }
}
