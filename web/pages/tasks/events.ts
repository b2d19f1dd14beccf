/** The activity list: the user's events, newest first, as they arrive. */

import { element, find, markFresh } from "@aftercommit/ui";

import { badge } from "./list.js";
import { type Directory } from "./directory.js";
import { type TaskEvent, type WithheldEvent } from "./model.js";
import { timeOf } from "./times.js";
import { eventSentence, noteOf, titleOf } from "./words.js";

const MOST = 300;
const LONGEST_NOTE = 140;
const UNTOLD = "The server cannot show this event.";

export class EventsPanel {
  readonly #list = find("events-list", HTMLOListElement);
  readonly #empty = find("events-empty", HTMLElement);
  readonly #spoken = find("spoken", HTMLElement);
  readonly #count = find("events-count", HTMLElement);
  #unseen = 0;

  constructor(
    readonly directory: Directory,
    readonly hrefOf: (task: number) => string,
  ) {}

  /** Add earlier events, given oldest first, below the others. */
  addOlder(events: readonly (TaskEvent | WithheldEvent)[]): void {
    this.#list.append(...events.map((event) => this.#item(event)).reverse());
    this.#drawn();
  }

  /** Add new events, given oldest first. */
  addNew(events: readonly (TaskEvent | WithheldEvent)[]): void {
    const items = events.map((event) => this.#item(event));
    this.#list.prepend(...[...items].reverse());
    items.forEach(markFresh);
    const newest = events.at(-1);
    if (newest && "withheld" in newest) this.#spoken.textContent = UNTOLD;
    else if (newest) this.#spoken.textContent = `${titleOf(newest)}: ${eventSentence(newest, this.directory)}`;
    while (this.#list.children.length > MOST) this.#list.lastElementChild?.remove();
    this.#unseen += items.length;
    this.#drawn();
  }

  /** The user is looking at the list now. */
  seen(): void {
    this.#unseen = 0;
    this.#drawn();
  }

  get isShown(): boolean {
    return this.#list.offsetParent !== null;
  }

  #drawn(): void {
    if (this.isShown) this.#unseen = 0;
    this.#empty.hidden = this.#list.children.length > 0;
    this.#count.textContent = this.#unseen > 0 ? ` · ${this.#unseen} new` : "";
  }

  #item(event: TaskEvent | WithheldEvent): HTMLElement {
    if ("withheld" in event) {
      const place = element("p", { class: "aside" }, `event ${event.event_id}`);
      return element("li", { class: "event" }, element("p", {}, UNTOLD), place);
    }
    this.directory.learn(event);
    const href = this.hrefOf(event.task_id);
    const state = event.payload["state"];
    const note = noteOf(event);
    const cut = note.length > LONGEST_NOTE ? `${note.slice(0, LONGEST_NOTE)}…` : note;
    return element(
      "li",
      { class: "event" },
      element("a", { href, "data-task": event.task_id, class: "name" }, titleOf(event)),
      ...(typeof state === "string" ? [badge(state)] : []),
      element("p", {}, eventSentence(event, this.directory)),
      ...(cut === "" ? [] : [element("p", { class: "note" }, cut)]),
      element("p", { class: "aside" }, timeOf(event.created_at), ` · event ${event.event_id}`),
    );
  }
}
