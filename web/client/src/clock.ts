/** The follower's clock. Tests use one that runs faster. */
export interface Clock {
  /** Monotonic seconds. */
  readonly now: () => number;
  /** Call once after this many seconds; the result cancels the call. */
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

/** If the wall clock gains this many seconds, the machine has slept. */
const SLEPT = 5;

/** A monotonic clock that includes the time in which the machine slept; on most systems `performance.now` does not. */
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

/** Seconds between two checks of the clock. */
const LOOK = 1;
/** A check that is this many seconds late was delayed by sleep or by a background tab. */
const LATE = 2;
/** Extra seconds after such a delay, to read what arrived meanwhile. */
const GRACE = 2;

/** Rings once unless it is set again in time. */
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
