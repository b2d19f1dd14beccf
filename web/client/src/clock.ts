/** Time, as the follower sees it. Tests bring one that runs faster. */
export interface Clock {
  /** Seconds that only ever go on. */
  readonly now: () => number;
  /** Call once after so many seconds; the result takes it back. */
  readonly after: (seconds: number, call: () => void) => () => void;
}

export const REAL_CLOCK: Clock = {
  now: wakeful(
    () => performance.now() / 1000,
    () => Date.now() / 1000,
  ),
  after: (seconds, call) => {
    const timer = setTimeout(call, seconds * 1000);
    return () => clearTimeout(timer);
  },
};

/** Seconds that the wall clock has to be ahead for the machine to have slept. */
const SLEPT = 5;

/** A steady clock that also counts the time in which the machine slept: on most systems a browser's own stands still
 * then. */
export function wakeful(steady: () => number, wall: () => number): () => number {
  let slept = 0;
  let before = { steady: steady(), wall: wall() };
  return () => {
    const now = { steady: steady(), wall: wall() };
    const ahead = now.wall - before.wall - (now.steady - before.steady);
    if (ahead > SLEPT) slept += ahead;
    before = now;
    return now.steady + slept;
  };
}

/** Seconds between two looks at the clock. */
const LOOK = 1;
/** Whoever looks this much too late was asleep, or held back as pages in the background are. */
const LATE = 2;
/** What came meanwhile lies ready, and gets so many seconds to be seen. */
const GRACE = 2;

/** Rings once when it was not set again in time. */
export class Alarm {
  #cancel = (): void => {};
  #until = 0;
  #spared = false;

  constructor(
    readonly clock: Clock,
    readonly ring: () => void,
  ) {}

  set(seconds: number): void {
    this.clear();
    this.#until = this.clock.now() + seconds;
    this.#spared = false;
    this.#wait();
  }

  clear(): void {
    this.#cancel();
  }

  #wait(): void {
    const now = this.clock.now();
    const next = Math.min(this.#until, now + LOOK);
    this.#cancel = this.clock.after(Math.max(0, next - now), () => this.#look(next));
  }

  #look(due: number): void {
    const now = this.clock.now();
    if (now >= this.#until && (now - due <= LATE || this.#spared)) return this.ring();
    if (now >= this.#until) {
      this.#spared = true;
      this.#until = now + GRACE;
    }
    this.#wait();
  }
}
