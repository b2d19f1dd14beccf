/**
 * Reloads tasks that events name: one request per task at a time, once more if the task changed meanwhile, and only a
 * few requests in parallel.
 */

export class Refresher {
  readonly #load: (id: number) => Promise<void>;
  readonly #most: number;
  /** Tasks being loaded; true if one must be loaded again. */
  readonly #under = new Map<number, boolean>();
  readonly #waiting = new Set<number>();

  /** `load` must not throw. */
  constructor(load: (id: number) => Promise<void>, most = 4) {
    this.#load = load;
    this.#most = most;
  }

  ask(id: number): void {
    if (this.#under.has(id)) this.#under.set(id, true);
    else this.#waiting.add(id);
    this.#next();
  }

  #next(): void {
    for (const id of this.#waiting) {
      if (this.#under.size >= this.#most) return;
      this.#waiting.delete(id);
      void this.#run(id);
    }
  }

  async #run(id: number): Promise<void> {
    this.#under.set(id, false);
    await this.#load(id);
    const again = this.#under.get(id) ?? false;
    this.#under.delete(id);
    if (again) this.#waiting.add(id);
    this.#next();
  }
}
