/**
 * The loaded lines: one contiguous, bounded part of the investigation, ordered by `seq`.
 *
 * Lines added at one end push others out at the other. No screen and no network here.
 */

import { type Line } from "./line.js";

export interface Change {
  /** Number of lines added. */
  readonly added: number;
  /** Number of lines dropped at the other end. */
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

  /** Add at the newer end. Lines up to the newest `seq` are skipped. */
  append(lines: readonly Line[]): Change {
    const newest = this.last?.log.seq ?? -Infinity;
    const added = lines.filter((line) => line.log.seq > newest);
    for (const line of added) this.#lines.push(line);
    const dropped = Math.max(0, this.#lines.length - this.most);
    if (dropped > 0) this.#lines.splice(0, dropped);
    return { added: added.length, dropped };
  }

  /** Add at the older end. */
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
