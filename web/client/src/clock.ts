/** Time, as the follower sees it. Tests bring one that runs faster. */
export interface Clock {
  /** Seconds that only ever go on. */
  readonly now: () => number;
  /** Call once after so many seconds; the result takes it back. */
  readonly after: (seconds: number, call: () => void) => () => void;
}

export const REAL_CLOCK: Clock = {
  now: () => performance.now() / 1000,
  after: (seconds, call) => {
    const timer = setTimeout(call, seconds * 1000);
    return () => clearTimeout(timer);
  },
};

/** Rings once when it was not set again in time. */
export class Alarm {
  #cancel = (): void => {};

  constructor(
    readonly clock: Clock,
    readonly ring: () => void,
  ) {}

  set(seconds: number): void {
    this.clear();
    this.#cancel = this.clock.after(seconds, this.ring);
  }

  clear(): void {
    this.#cancel();
  }
}
