/** Filters, search, following and the jump to a time. */

import { find } from "@aftercommit/ui";

import { dayOf, type Level } from "./line.js";
import { type Filters } from "./place.js";
import { type Viewer } from "./viewer.js";

/** Milliseconds without a key press before a search starts. */
const TYPED = 350;
const SERVICES_OFFERED = 50;

export class Toolbar {
  readonly #level = find("level", HTMLSelectElement);
  readonly #source = find("source", HTMLSelectElement);
  readonly #service = find("service", HTMLInputElement);
  readonly #search = find("search", HTMLInputElement);
  readonly #times = find("times", HTMLDialogElement);
  readonly #moment = find("moment", HTMLInputElement);
  #viewer: Viewer | undefined;

  constructor(filters: Filters) {
    this.#level.value = filters.minLevel;
    this.#source.value = filters.source;
    this.#service.value = filters.service;
  }

  connect(viewer: Viewer): void {
    this.#viewer = viewer;
    find("tools", HTMLFormElement).addEventListener("submit", (event) => event.preventDefault());
    this.#connectFilters(viewer);
    this.#connectSearch(viewer);
    find("follow", HTMLButtonElement).addEventListener("click", () => viewer.toggleFollow());
    find("jump", HTMLButtonElement).addEventListener("click", () => this.askTime());
    find("times-cancel", HTMLButtonElement).addEventListener("click", () => this.#times.close());
    find("times-form", HTMLFormElement).addEventListener("submit", () => {
      const time = new Date(this.#moment.value).getTime();
      if (Number.isFinite(time)) viewer.goToTime(time);
    });
  }

  focusSearch(): void {
    this.#search.focus();
    this.#search.select();
  }

  clearSearch(): void {
    this.#search.value = "";
    this.#viewer?.look("");
    find("list", HTMLElement).focus();
  }

  askTime(): void {
    const { first, last } = this.#viewer?.lines ?? {};
    const shown = this.#viewer?.activeLine ?? last;
    if (shown) this.#moment.value = localMoment(shown.time);
    find("times-range", HTMLElement).textContent =
      first && last ? `Loaded lines: ${readable(first.time)} to ${readable(last.time)}.` : "";
    this.#times.showModal();
  }

  #connectFilters(viewer: Viewer): void {
    const apply = (): void => viewer.filter(this.#filters());
    this.#level.addEventListener("change", apply);
    this.#source.addEventListener("change", apply);
    this.#service.addEventListener("change", apply);
    this.#service.addEventListener("focus", () => this.#offerServices(viewer));
  }

  #connectSearch(viewer: Viewer): void {
    let typing: ReturnType<typeof setTimeout> | undefined;
    this.#search.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => viewer.look(this.#search.value), TYPED);
    });
    this.#search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      clearTimeout(typing);
      viewer.look(this.#search.value, event.shiftKey ? -1 : 1);
    });
    find("next", HTMLButtonElement).addEventListener("click", () => viewer.step(1));
    find("previous", HTMLButtonElement).addEventListener("click", () => viewer.step(-1));
  }

  #filters(): Filters {
    return {
      minLevel: this.#level.value as Level,
      source: this.#source.value as Filters["source"],
      service: this.#service.value.trim(),
    };
  }

  /** The services of the newest loaded lines. */
  #offerServices(viewer: Viewer): void {
    const known = new Set<string>();
    for (let index = viewer.lines.length - 1; index >= 0 && known.size < SERVICES_OFFERED; index -= 1) {
      const line = viewer.lines.at(index);
      if (line) known.add(line.log.service);
    }
    const options = [...known].sort().map((service) => new Option(service, service));
    find("services", HTMLDataListElement).replaceChildren(...options);
  }
}

function localMoment(time: number): string {
  const clock = new Date(time).toTimeString().slice(0, 8);
  return `${dayOf(time)}T${clock}`;
}

function readable(time: number): string {
  return new Date(time).toLocaleString();
}
