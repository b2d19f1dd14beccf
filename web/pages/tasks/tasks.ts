/** The tasks that are loaded. What is older than what is known never takes its place. Pure. */

import { type Task } from "./model.js";
import { type Filters } from "./place.js";
import { turnOf } from "./words.js";

export class Tasks {
  #known = new Map<number, Task>();
  /** Known from before the list was asked for again, and not heard of since. */
  #stale = new Set<number>();

  get(id: number): Task | undefined {
    return this.#known.get(id);
  }

  /** False when something newer was known already: answers may overtake each other. */
  put(task: Task): boolean {
    this.#stale.delete(task.task_id);
    const known = this.#known.get(task.task_id);
    if (known && known.version > task.version) return false;
    this.#known.set(task.task_id, task);
    return true;
  }

  remove(id: number): void {
    this.#known.delete(id);
  }

  /** All are asked for again; until they come, these are shown. */
  doubt(): void {
    this.#stale = new Set(this.#known.keys());
  }

  /** They came: what was not among them is no longer there. */
  settle(): void {
    for (const id of this.#stale) this.#known.delete(id);
    this.#stale.clear();
  }

  /** Newest first. */
  shown({ state, turn }: Filters): readonly Task[] {
    return [...this.#known.values()]
      .filter((task) => (state === "" || task.state === state) && (turn === "" || turnOf(task) === turn))
      .sort((one, other) => other.task_id - one.task_id);
  }
}
