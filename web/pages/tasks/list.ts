/** The task list. Rows are reused, so that focus and clicks survive an update. */

import { arrange, element, find, markFresh, renew } from "@aftercommit/ui";

import { type Task } from "./model.js";
import { timeOf } from "./times.js";
import { label, turnOf } from "./words.js";

export interface ListHooks {
  hrefOf(task: number): string;
  /** Whom the task waits for, in words. */
  turn(task: Task): string;
}

interface Row {
  readonly item: HTMLLIElement;
  readonly link: HTMLAnchorElement;
  drawn: Task;
}

export class TaskList {
  readonly #list = find("list", HTMLUListElement);
  readonly #rows = new Map<number, Row>();

  constructor(readonly hooks: ListHooks) {}

  draw(tasks: readonly Task[], open: number | null): void {
    const rows = tasks.map((task) => this.#row(task));
    const wanted = new Set(tasks.map((task) => task.task_id));
    for (const id of this.#rows.keys()) if (!wanted.has(id)) this.#rows.delete(id);
    for (const { link, drawn } of rows) {
      if (drawn.task_id === open) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    arrange(
      this.#list,
      rows.map(({ item }) => item),
    );
  }

  markFresh(id: number): void {
    const row = this.#rows.get(id);
    if (row) markFresh(row.link);
  }

  /** Move the focus by one task, from the focused or the open one. */
  move(by: 1 | -1): void {
    const links = [...this.#list.querySelectorAll("a")];
    const focused = links.findIndex((link) => link === document.activeElement);
    const from = focused >= 0 ? focused : links.findIndex((link) => link.hasAttribute("aria-current"));
    const next = from < 0 ? 0 : Math.max(0, Math.min(links.length - 1, from + by));
    links[next]?.focus();
  }

  focus(id: number): void {
    this.#rows.get(id)?.link.focus();
  }

  #row(task: Task): Row {
    const known = this.#rows.get(task.task_id);
    if (known) {
      // The same version may allow other actions now: the user may have got a role.
      if (known.drawn !== task) {
        known.drawn = task;
        renew(known.link, this.#content(task));
      }
      return known;
    }
    const href = this.hooks.hrefOf(task.task_id);
    const link = element("a", { class: "task", href, "data-task": task.task_id }, ...this.#content(task));
    const row = { item: element("li", {}, link), link, drawn: task };
    this.#rows.set(task.task_id, row);
    return row;
  }

  #content(task: Task): readonly HTMLElement[] {
    return [
      element("span", { class: "name" }, task.title),
      badge(task.state),
      element("span", { class: "turn", "data-turn": turnOf(task) }, this.hooks.turn(task)),
      element("span", { class: "aside" }, `#${task.task_id} · `, timeOf(task.updated_at)),
    ];
  }
}

/** A state as a coloured word; the word alone carries the meaning. */
export function badge(state: string): HTMLElement {
  return element("span", { class: "badge", "data-state": state }, label(state));
}
