/** The loaded tasks. An older version never replaces a newer one. Pure. */

import { type Task } from "./model.js";
import { type Filters } from "./place.js";
import { turnOf } from "./words.js";

export class Tasks {
  #known = new Map<number, Task>();
  /** Loaded before the list was requested again, and not confirmed since. */
  #stale = new Set<number>();

  get(id: number): Task | undefined {
    return this.#known.get(id);
  }

  /** Store a task. False when a newer version is already stored: answers may overtake each other. */
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

  /** The list is being requested again; until it arrives, the old tasks stay. */
  doubt(): void {
    this.#stale = new Set(this.#known.keys());
  }

  /** The list has arrived: drop tasks that are not in it. */
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
