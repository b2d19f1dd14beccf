/**
 * Loads again what events say has changed: each thing once at a time, and once more when it changed meanwhile; only a
 * few at once, however many events come.
 */

export class Refresher {
  readonly #load: (id: number) => Promise<void>;
  readonly #most: number;
  /** Under way; true when it has to be loaded once more. */
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
