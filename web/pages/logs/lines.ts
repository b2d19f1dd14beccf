/**
 * The lines that are loaded: one unbroken piece of the investigation, in order of `seq`, bounded.
 *
 * What comes in at one end pushes out at the other. Nothing here knows of the screen or the network.
 */

import { type Line } from "./line.js";

export interface Change {
  /** How many lines came in. */
  readonly added: number;
  /** How many were pushed out at the other end. */
  readonly dropped: number;
}

export class Lines {
  #lines: Line[] = [];

  constructor(readonly most = 100_000) {}

  get length(): number {
    return this.#lines.length;
  }

  get first(): Line | undefined {
    return this.#lines[0];
  }

  get last(): Line | undefined {
    return this.#lines.at(-1);
  }

  get full(): boolean {
    return this.#lines.length >= this.most;
  }

  at(index: number): Line | undefined {
    return this.#lines[index];
  }

  /** At the newer end. A line that is there already, or belongs before the end, is left out. */
  append(lines: readonly Line[]): Change {
    const newest = this.last?.log.seq ?? -Infinity;
    const added = lines.filter((line) => line.log.seq > newest);
    for (const line of added) this.#lines.push(line);
    const dropped = Math.max(0, this.#lines.length - this.most);
    if (dropped > 0) this.#lines.splice(0, dropped);
    return { added: added.length, dropped };
  }

  /** At the older end. */
  prepend(lines: readonly Line[]): Change {
    const oldest = this.first?.log.seq ?? Infinity;
    const added = lines.filter((line) => line.log.seq < oldest);
    this.#lines = added.concat(this.#lines);
    const dropped = Math.max(0, this.#lines.length - this.most);
    if (dropped > 0) this.#lines.length = this.most;
    return { added: added.length, dropped };
  }

  clear(): void {
    this.#lines = [];
  }

  /** The index of the first line that is not before this one; the length when all are. */
  indexOfSeq(seq: number): number {
    return this.#bisect((line) => line.log.seq >= seq);
  }

  /** The index of the first line at or after this time; the length when all are earlier. */
  indexOfTime(time: number): number {
    return this.#bisect((line) => line.time >= time);
  }

  #bisect(reached: (line: Line) => boolean): number {
    let low = 0;
    let high = this.#lines.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (reached(this.#lines[middle] as Line)) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}
