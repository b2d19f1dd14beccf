/**
 * Steps in the order in which they were asked for, where some of them take their time: who presses "to the beginning"
 * and then "copy the line" means the line that comes, not the one that is still shown.
 *
 * A *move* goes somewhere else, and the last one counts: it overtakes others that are under way. An *act* is done where
 * one is: it waits for all that was asked for before it, and whatever is asked for later waits for it.
 */

export type Step = () => void | Promise<void>;

type Kind = "move" | "act";

export class Turns {
  readonly #underWay = { move: 0, act: 0 };
  readonly #waiting: { readonly kind: Kind; readonly step: Step }[] = [];

  move(step: Step): void {
    this.#ask("move", step, this.#underWay.act === 0);
  }

  act(step: Step): void {
    this.#ask("act", step, this.#isIdle);
  }

  get #isIdle(): boolean {
    return this.#underWay.move + this.#underWay.act === 0;
  }

  #ask(kind: Kind, step: Step, free: boolean): void {
    if (free && this.#waiting.length === 0) void this.#run(kind, step);
    else this.#waiting.push({ kind, step });
  }

  async #run(kind: Kind, step: Step): Promise<void> {
    this.#underWay[kind] += 1;
    try {
      await step();
    } finally {
      // Also after one that failed: it holds up nobody.
      this.#underWay[kind] -= 1;
      const next = this.#isIdle ? this.#waiting.shift() : undefined;
      if (next) void this.#run(next.kind, next.step);
    }
  }
}
