/** A reader's position, the events it has seen, and gaps, as `conformance/trail.yaml` defines them. */

export type Gap =
  /** Consecutive numbers were promised, but some are missing. */
  | { readonly kind: "missing"; readonly expected: number; readonly got: number }
  /** The server could not continue from the reader's cursor and named another (null: the newest). */
  | { readonly kind: "reset"; readonly reason: string; readonly restart: string | null }
  /** The server could not show this event. */
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
  /** null: unknown. */
  readonly cursor: string | null;
  /** Not null: the server could not show the event. */
  readonly withheld?: string | null;
}

export interface Verdict {
  readonly deliver: boolean;
  readonly gap: { readonly expected: number; readonly got: number } | null;
}

const REPEAT: Verdict = { deliver: false, gap: null };
/** Positions are below 2^53, so 16 digits are enough and JavaScript can hold them. */
const NUMBER = /^(?:.*#)?([0-9]{1,16})$/s;

/** A range of numbers that no event has, both ends included. */
export type Range = readonly [low: number, high: number];

export class Trail {
  cursor: string | null;
  #seen = new Set<string>();
  #number: number | null;
  #neverGiven: Range[] = [];

  constructor(
    start: string | null,
    /** Whether the server promises numbers without gaps. */
    readonly sequence = false,
    /** Number of ids to remember. */
    readonly window = 10_000,
  ) {
    this.cursor = start;
    this.#number = numberIn(start);
  }

  /** Record an event: is it new, and is anything missing before it? */
  arrived({ id, number: told, cursor, withheld = null }: Arrival): Verdict {
    const number = told ?? this.#numberOf(cursor);
    if (this.sequence && number !== undefined && this.#number !== null && number <= this.#number) return REPEAT;
    const expected = this.#number === null ? null : this.#after(this.#number);
    // Also for a known event: after a reset to an earlier cursor, events repeat.
    if (cursor !== null) this.cursor = cursor;
    if (number !== undefined) this.#number = number;
    // Withheld events are not remembered: if one comes later after all, it is new.
    if (withheld === null ? !this.#remember(id) : this.#seen.has(id)) return REPEAT;
    if (!this.sequence || number === undefined || expected === null || number === expected) {
      return { deliver: true, gap: null };
    }
    return { deliver: true, gap: { expected, got: number } };
  }

  /** No event has these numbers: the log was restored from a backup there. */
  neverGiven(range: Range): void {
    this.#neverGiven = [...this.#neverGiven.slice(-99), range];
  }

  /** The cursor moved without an event: nothing is missing up to it. */
  place(cursor: string): void {
    this.cursor = cursor === "" ? null : cursor;
    this.#number = numberIn(this.cursor);
  }

  /** The cursor was replaced, forwards or backwards. Known events are not delivered again. */
  reset(cursor: string | null): void {
    this.cursor = cursor;
    this.#number = numberIn(cursor);
  }

  /** The next expected number. */
  #after(number: number): number {
    return this.#neverGiven.reduce((next, [low, high]) => (low <= next && next <= high ? high + 1 : next), number + 1);
  }

  /** The number of an event without one: from its cursor, or else the next number. */
  #numberOf(cursor: string | null): number | undefined {
    return numberIn(cursor) ?? (this.#number === null ? undefined : this.#number + 1);
  }

  /** Remember an id; false if it was known. Forgets the oldest id when there are too many. */
  #remember(id: string): boolean {
    const known = this.#seen.delete(id);
    this.#seen.add(id);
    if (this.#seen.size > this.window) {
      // A Set iterates in insertion order.
      for (const oldest of this.#seen) {
        this.#seen.delete(oldest);
        break;
      }
    }
    return !known;
  }
}

/** The gap to report for a withheld event. */
export function withheldGap({ id, number, cursor }: Arrival, reason: string): Gap {
  return { kind: "withheld", reason, id, number: number ?? numberIn(cursor), cursor };
}

function numberIn(cursor: string | null): number | null {
  const found = cursor === null ? null : NUMBER.exec(cursor);
  const number = found ? Number(found[1]) : null;
  return number !== null && Number.isSafeInteger(number) ? number : null;
}
