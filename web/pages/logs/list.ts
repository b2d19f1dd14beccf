/**
 * The visible list: a few dozen rows of equal height over any number of lines.
 *
 * It draws at most once per frame, and only visible rows. Code that adds or removes lines at the beginning calls
 * `shifted`, so that the lines in view stay where they are.
 */

import { type Line } from "./line.js";
import { type Lines } from "./lines.js";
import { Row, rowId, type Look } from "./row.js";

/** Extra rows above and below the view, so that quick scrolling shows no empty space. */
const BEYOND = 12;

export interface ListEvents {
  /** The user scrolled. */
  scrolled(): void;
  /** The list's size changed, and perhaps the height of its rows. */
  resized(): void;
  /** A row was clicked. */
  chosen(line: Line): void;
  /** A frame was drawn. */
  drawn(): void;
}

export class List {
  #rows = new Map<number, Row>();
  #spare: Row[] = [];
  #asked = false;
  #height: number;
  #toEnd = false;

  constructor(
    readonly viewport: HTMLElement,
    readonly canvas: HTMLElement,
    readonly lines: Lines,
    readonly look: () => Look,
    readonly events: ListEvents,
  ) {
    this.#height = this.#readHeight();
    viewport.addEventListener("scroll", () => {
      this.draw();
      events.scrolled();
    });
    canvas.addEventListener("click", (event) => this.#clicked(event));
    new ResizeObserver(() => this.#resized()).observe(viewport);
  }

  /** Draw in the next frame. */
  draw(): void {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      this.#drawNow();
    });
  }

  /** Lines were added (positive) or removed (negative) at the beginning: keep the view on the same lines. */
  shifted(by: number): void {
    if (by === 0) return;
    const top = this.viewport.scrollTop + by * this.#height;
    this.#setHeight();
    this.viewport.scrollTop = top;
    this.draw();
  }

  /** Show the newest line, in the next frame. */
  toEnd(): void {
    this.#toEnd = true;
    this.draw();
  }

  /** Scroll a line into view: to the middle when it is far away, not at all when it is visible. */
  reveal(index: number, where: "nearest" | "middle" = "nearest"): void {
    this.#toEnd = false;
    this.#setHeight();
    const top = index * this.#height;
    const { scrollTop, clientHeight } = this.viewport;
    const visible = top >= scrollTop && top + this.#height <= scrollTop + clientHeight;
    if (!visible || where === "middle") {
      const near = top > scrollTop - 3 * this.#height && top < scrollTop + clientHeight + 3 * this.#height;
      if (near && where === "nearest") {
        this.viewport.scrollTop = top < scrollTop ? top : top + this.#height - clientHeight;
      } else {
        this.viewport.scrollTop = top - (clientHeight - this.#height) / 2;
      }
    }
    this.draw();
  }

  /** Index of the top visible line. */
  get top(): number {
    return Math.min(Math.floor(this.viewport.scrollTop / this.#height), Math.max(0, this.lines.length - 1));
  }

  get rowsInView(): number {
    return Math.max(1, Math.floor(this.viewport.clientHeight / this.#height));
  }

  get atEnd(): boolean {
    const { scrollTop, clientHeight, scrollHeight } = this.viewport;
    return scrollHeight - clientHeight - scrollTop < 1.5 * this.#height;
  }

  /** Few lines are left below. */
  get nearEnd(): boolean {
    const { scrollTop, clientHeight, scrollHeight } = this.viewport;
    return scrollHeight - clientHeight - scrollTop < clientHeight;
  }

  /** Few lines are left above. */
  get atBeginning(): boolean {
    return this.viewport.scrollTop < this.viewport.clientHeight;
  }

  #drawNow(): void {
    this.#setHeight();
    if (this.#toEnd) {
      this.viewport.scrollTop = this.viewport.scrollHeight;
      this.#toEnd = false;
    }
    const from = Math.max(0, Math.floor(this.viewport.scrollTop / this.#height) - BEYOND);
    const upto = Math.min(this.lines.length, from + this.rowsInView + 2 * BEYOND + 2);
    this.#recycle(from, upto);
    const look = this.look();
    for (let index = from; index < upto; index += 1) this.#show(index, look);
    for (const row of this.#spare) row.element.remove();
    this.#spare.length = 0;
    const active = look.active === undefined ? null : document.getElementById(rowId(look.active));
    if (active) this.viewport.setAttribute("aria-activedescendant", active.id);
    else this.viewport.removeAttribute("aria-activedescendant");
    this.events.drawn();
  }

  #recycle(from: number, upto: number): void {
    for (const [index, row] of this.#rows) {
      if (index >= from && index < upto) continue;
      this.#rows.delete(index);
      this.#spare.push(row);
    }
  }

  #show(index: number, look: Look): void {
    let row = this.#rows.get(index);
    if (!row) {
      row = this.#spare.pop() ?? new Row();
      this.#rows.set(index, row);
      if (!row.element.isConnected) this.canvas.append(row.element);
    }
    row.show(this.lines.at(index) as Line, index, this.#height, look);
  }

  #setHeight(): void {
    this.canvas.style.height = `${this.lines.length * this.#height}px`;
    this.viewport.setAttribute("aria-rowcount", String(this.lines.length + 1));
  }

  /** The style sheet sets the row height: rows are higher on narrow screens. */
  #readHeight(): number {
    return Number.parseFloat(getComputedStyle(this.viewport).getPropertyValue("--row")) || 24;
  }

  #resized(): void {
    const height = this.#readHeight();
    if (height !== this.#height) {
      const top = this.top;
      this.#height = height;
      this.#setHeight();
      this.viewport.scrollTop = top * height;
    }
    this.draw();
    this.events.resized();
  }

  #clicked(event: Event): void {
    const row = event.target instanceof Element ? event.target.closest<HTMLElement>(".row") : null;
    const line = row ? this.lines.at(this.lines.indexOfSeq(Number(row.dataset["seq"]))) : undefined;
    // Selecting text is not a click on the row.
    if (line && getSelection()?.isCollapsed !== false) this.events.chosen(line);
  }
}
