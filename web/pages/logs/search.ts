/** Search in the loaded lines. Matches are stored by `seq`, because lines change at both ends. */

import { foldedText, type Line } from "./line.js";
import { type Lines } from "./lines.js";

export class Search {
  #wanted = "";
  #matches: number[] = [];
  #current = -1;
  /** The range of `seq` that was searched. */
  #from = Infinity;
  #upto = -Infinity;

  get wanted(): string {
    return this.#wanted;
  }

  get count(): number {
    return this.#matches.length;
  }

  /** 1 for the first match; 0 when there is none. */
  get place(): number {
    return this.#current + 1;
  }

  /** The `seq` of the current match. */
  get current(): number | undefined {
    return this.#matches[this.#current];
  }

  /** Start a search at the first match at or after a line, or else at the last match. */
  start(wanted: string, lines: Lines, near: number): void {
    this.#wanted = wanted.toLowerCase();
    this.#matches = [];
    this.#current = -1;
    this.#from = Infinity;
    this.#upto = -Infinity;
    this.update(lines);
    if (this.#matches.length === 0) return;
    const after = this.#matches.findIndex((seq) => seq >= near);
    this.#current = after < 0 ? this.#matches.length - 1 : after;
  }

  /** Search lines that were added at either end, and forget removed ones. */
  update(lines: Lines): void {
    if (this.#wanted === "") return;
    const first = lines.first?.log.seq ?? Infinity;
    const last = lines.last?.log.seq ?? -Infinity;
    const current = this.current;
    const known = this.#matches.filter((seq) => seq >= first && seq <= last);
    const older: number[] = [];
    for (let index = 0; index < lines.length; index += 1) {
      const line = lines.at(index) as Line;
      if (line.log.seq >= this.#from) break;
      if (this.matches(line)) older.push(line.log.seq);
    }
    const newer: number[] = [];
    const overlap = this.#from <= this.#upto;
    for (let index = overlap ? lines.indexOfSeq(this.#upto + 1) : lines.length; index < lines.length; index += 1) {
      const line = lines.at(index) as Line;
      if (this.matches(line)) newer.push(line.log.seq);
    }
    this.#matches = older.concat(known, newer);
    this.#from = first;
    this.#upto = last;
    if (current !== undefined) this.#current = this.#matches.indexOf(current);
  }

  matches(line: Line): boolean {
    return this.#wanted !== "" && foldedText(line).includes(this.#wanted);
  }

  /** The next or previous match, wrapping around. */
  step(by: 1 | -1): number | undefined {
    const count = this.#matches.length;
    if (count === 0) return undefined;
    this.#current = this.#current < 0 ? (by > 0 ? 0 : count - 1) : (this.#current + by + count) % count;
    return this.current;
  }
}

export interface Piece {
  readonly text: string;
  readonly marked: boolean;
}

/** Split a text at its matches. If lower case changes its length, nothing is marked. */
export function pieces(text: string, wanted: string): Piece[] {
  const folded = text.toLowerCase();
  if (wanted === "" || folded.length !== text.length) return [{ text, marked: false }];
  const found: Piece[] = [];
  let start = 0;
  for (let at = folded.indexOf(wanted); at >= 0; at = folded.indexOf(wanted, start)) {
    if (at > start) found.push({ text: text.slice(start, at), marked: false });
    start = at + wanted.length;
    found.push({ text: text.slice(at, start), marked: true });
  }
  if (start < text.length || found.length === 0) found.push({ text: text.slice(start), marked: false });
  return found;
}
