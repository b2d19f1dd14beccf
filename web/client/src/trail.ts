/** Where a reader is, what it has seen, and what is missing. `conformance/trail.yaml` fixes it. */

export type Gap =
  /** Numbers that were promised to follow one another did not. */
  | { readonly kind: "missing"; readonly expected: number; readonly got: number }
  /** The server could not go on from the reader's place, and named another (null: from the newest). */
  | { readonly kind: "reset"; readonly reason: string; readonly restart: string | null }
  /** The server could not show an event: this one. */
  | {
      readonly kind: "withheld";
      readonly reason: string;
      readonly id: string;
      readonly number: number | null;
      readonly cursor: string | null;
    };

export interface Arrival {
  readonly id: string;
  readonly number: number | undefined;
  /** null: none is known for this event. */
  readonly cursor: string | null;
  /** Not null: the server could not show it, so it was not received. */
  readonly withheld?: string | null;
}

export interface Verdict {
  readonly deliver: boolean;
  readonly gap: { readonly expected: number; readonly got: number } | null;
}

const REPEAT: Verdict = { deliver: false, gap: null };
/** Positions are below 2^53: every number of 16 digits that a log gives is one that JavaScript can hold. */
const NUMBER = /^(?:.*#)?([0-9]{1,16})$/s;

/** A range of numbers that belong to no event, both ends included. */
export type Range = readonly [low: number, high: number];

export class Trail {
  cursor: string | null;
  #seen = new Set<string>();
  #number: number | null;
  #neverGiven: Range[] = [];

  constructor(
    start: string | null,
    /** Whether numbers are promised to have no gaps. */
    readonly sequence = false,
    /** How many ids are remembered. */
    readonly window = 10_000,
  ) {
    this.cursor = start;
    this.#number = numberIn(start);
  }

  /** An event came: is it new, and is something missing before it? */
  arrived({ id, number: told, cursor, withheld = null }: Arrival): Verdict {
    const number = told ?? this.#numberOf(cursor);
    if (this.sequence && number !== undefined && this.#number !== null && number <= this.#number) return REPEAT;
    const expected = this.#number === null ? null : this.#after(this.#number);
    // Also for one that was seen before: after a reset further back, the numbers begin anew with repeats.
    if (cursor !== null) this.cursor = cursor;
    if (number !== undefined) this.#number = number;
    // What is withheld is not remembered: when it comes after all, it is news.
    if (withheld === null ? !this.#remember(id) : this.#seen.has(id)) return REPEAT;
    if (!this.sequence || number === undefined || expected === null || number === expected) {
      return { deliver: true, gap: null };
    }
    return { deliver: true, gap: { expected, got: number } };
  }

  /** The server says that these numbers belong to no event: the log was restored between the two beside them. */
  neverGiven(range: Range): void {
    this.#neverGiven = [...this.#neverGiven.slice(-99), range];
  }

  /** The place moved without an event: all up to it is accounted for. */
  place(cursor: string): void {
    this.cursor = cursor === "" ? null : cursor;
    this.#number = numberIn(this.cursor);
  }

  /** The cursor was replaced, forwards or backwards. What was handed out is not handed out again. */
  reset(cursor: string | null): void {
    this.cursor = cursor;
    this.#number = numberIn(cursor);
  }

  /** The number that comes next. */
  #after(number: number): number {
    return this.#neverGiven.reduce((next, [low, high]) => (low <= next && next <= high ? high + 1 : next), number + 1);
  }

  /** An event that the server withholds tells no number: its cursor does, or else it is the next. */
  #numberOf(cursor: string | null): number | undefined {
    return numberIn(cursor) ?? (this.#number === null ? undefined : this.#number + 1);
  }

  /** False when it was known; known ids count as new again, and the oldest is forgotten when there are too many. */
  #remember(id: string): boolean {
    const known = this.#seen.delete(id);
    this.#seen.add(id);
    if (this.#seen.size > this.window) {
      // A Set gives its members in the order in which they came.
      for (const oldest of this.#seen) {
        this.#seen.delete(oldest);
        break;
      }
    }
    return !known;
  }
}

/** What is told of an event that the server could not show. */
export function withheldGap({ id, number, cursor }: Arrival, reason: string): Gap {
  return { kind: "withheld", reason, id, number: number ?? numberIn(cursor), cursor };
}

function numberIn(cursor: string | null): number | null {
  const found = cursor === null ? null : NUMBER.exec(cursor);
  const number = found ? Number(found[1]) : null;
  return number !== null && Number.isSafeInteger(number) ? number : null;
}
