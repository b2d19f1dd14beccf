/**
 * Runs the user's steps in order, where some of them take time: after "first line" and then "copy the line", the first
 * line is copied, not the one still shown.
 *
 * A *move* goes somewhere else; the last one wins and may overtake others. An *act* works on the current place: it
 * waits for all earlier steps, and later steps wait for it.
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
      // Also after a failure, so that later steps still run.
      this.#underWay[kind] -= 1;
      const next = this.#isIdle ? this.#waiting.shift() : undefined;
      if (next) void this.#run(next.kind, next.step);
    }
  }
}
