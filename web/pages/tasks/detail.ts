/** One task: description, people, actions and history. */

import { element, find, type Child } from "@aftercommit/ui";

import { ActionPanel, type Act } from "./actions.js";
import { type Directory } from "./directory.js";
import { badge } from "./list.js";
import { type Entry, type Task } from "./model.js";
import { timeOf } from "./times.js";
import { label, stepSentence, turnOf } from "./words.js";

export interface DetailHooks {
  act(task: number, ...done: Parameters<Act>): Promise<void>;
  turn(task: Task): string;
}

export class Detail {
  readonly #panel = find("detail-body", HTMLElement);
  #title = element("h2", {});
  #facts = element("p", {});
  #about = element("div", {});
  #steps: HTMLElement = element("section", {});
  #actions: ActionPanel | null = null;
  #shown: number | null = null;

  constructor(
    readonly directory: Directory,
    readonly hooks: DetailHooks,
  ) {}

  get shown(): number | null {
    return this.#shown;
  }

  /** Show a task or its changes. The user's unsent text stays. */
  show(task: Task): void {
    if (this.#shown !== task.task_id) this.#begin(task);
    // Change the text in place: a screen reader may be reading this element.
    this.#title.textContent = task.title;
    this.#facts.replaceChildren(...this.#factsOf(task));
    this.#about.replaceChildren(...this.#aboutOf(task));
    this.#actions?.update(task);
  }

  showHistory(task: number, entries: readonly Entry[]): void {
    if (task !== this.#shown) return;
    this.#steps.replaceChildren(
      element("h3", {}, "History"),
      element("ol", { class: "history" }, ...entries.map((entry) => this.#step(entry))),
    );
  }

  /** Show a message instead of a task. */
  say(title: string, ...text: Child[]): void {
    this.#shown = null;
    this.#actions = null;
    this.#fill(element("div", { class: "instead" }, element("h2", { tabindex: -1 }, title), element("p", {}, ...text)));
  }

  /** Show a message about the last attempt. */
  tell(text: string): void {
    this.#actions?.say(text);
  }

  focus(): void {
    this.#panel.querySelector<HTMLElement>("h2")?.focus();
  }

  /** Close the form that is open; false when there is none. */
  closeForm(): boolean {
    if (!this.#actions?.isOpen) return false;
    this.#actions.close();
    return true;
  }

  #begin(task: Task): void {
    this.#shown = task.task_id;
    this.#title = element("h2", { tabindex: -1 });
    this.#facts = element("p", { class: "facts" });
    this.#about = element("div", { class: "about" });
    this.#steps = element("section", { class: "steps" }, element("p", { class: "soft" }, "Loading the history …"));
    this.#actions = new ActionPanel(task, this.directory, (...done) => this.hooks.act(task.task_id, ...done));
    const head = element("header", {}, this.#title, this.#facts);
    // Set before the focus moves here, so that a screen reader starts with the title.
    this.#title.textContent = task.title;
    this.#fill(head, this.#actions.whole, this.#about, this.#steps);
    this.#panel.parentElement?.scrollTo({ top: 0 });
  }

  /** Replace the content; if the focus was in it, move it to the new heading. */
  #fill(...content: HTMLElement[]): void {
    const reading = this.#panel.contains(document.activeElement);
    this.#panel.replaceChildren(...content);
    if (reading) this.focus();
  }

  #factsOf(task: Task): readonly HTMLElement[] {
    const turn = element("span", { class: "turn", "data-turn": turnOf(task) }, this.hooks.turn(task));
    return [badge(task.state), turn, element("span", { class: "aside" }, `#${task.task_id}`)];
  }

  #aboutOf(task: Task): readonly HTMLElement[] {
    const description = task.description === "" ? "No description." : task.description;
    const roles = task.supervisor_role_ids.map((role) => this.directory.role(role));
    return [
      element("p", { class: task.description === "" ? "soft" : "prose" }, description),
      ...(task.report === null
        ? []
        : [element("h3", {}, "Report"), element("blockquote", { class: "prose" }, task.report)]),
      element("h3", {}, "People"),
      element(
        "dl",
        { class: "people-list" },
        ...pair("Created by", this.#person(task.creator_user_id)),
        ...pair("Assigned to", this.#person(task.assignee_user_id)),
        ...pair("Supervised by", roles.length > 0 ? roles.join(", ") : "no role"),
        ...pair("Created", timeOf(task.created_at)),
        ...pair("Last changed", timeOf(task.updated_at)),
      ),
    ];
  }

  #person(user: number | null): string {
    return this.directory.isMe(user) ? `${this.directory.name(user)} (you)` : this.directory.name(user);
  }

  #step(entry: Entry): HTMLElement {
    const role = entry.actor_role_id === null ? "" : ` · as ${this.directory.role(entry.actor_role_id)}`;
    const change =
      entry.from_state === entry.to_state || entry.from_state === null ? "" : ` · ${label(entry.to_state)}`;
    return element(
      "li",
      {},
      element("p", {}, stepSentence(entry, this.directory)),
      ...(entry.note === null || entry.note === "" ? [] : [element("p", { class: "prose note" }, entry.note)]),
      element("p", { class: "aside" }, timeOf(entry.at), change, role),
    );
  }
}

function pair(term: string, said: Child): readonly HTMLElement[] {
  return [element("dt", {}, term), element("dd", {}, said)];
}
