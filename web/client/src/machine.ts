/**
 * Decides what a client does next: takes an input and returns one action. It does no IO.
 *
 * The stream comes first. Between attempts it waits 2, then 4 seconds. After three failures in a row it polls every 5
 * seconds, slower while nothing comes, and tries the stream again every minute. `conformance/machine.yaml` defines this
 * for all clients.
 */

/** An input from the network or the clock. */
type Event =
  | { readonly input: "start" | "opened" | "news" | "reset" | "ended" }
  | { readonly input: "bye"; readonly retry: number | null }
  | { readonly input: "stream_refused" | "poll_refused"; readonly status: number; readonly retryAfter: number | null }
  | { readonly input: "page"; readonly events: number; readonly more: boolean }
  | { readonly input: "unchanged" | "poll_failed" | "elapsed" | "refreshed" };

export type Input =
  | Event
  | { readonly input: "interrupted" }
  | { readonly input: "online" }
  | { readonly input: "hidden" }
  | { readonly input: "visible" };

export type Action =
  | { readonly do: "stream" | "read" | "poll" | "refresh" | "stop" | "none" }
  | { readonly do: "wait"; readonly seconds: number };

/** The state to show to a user. */
export type StateName = "connecting" | "streaming" | "polling" | "waiting" | "stopped";

export interface MachineOptions {
  /** Monotonic seconds. */
  readonly now: () => number;
  /** In [0, 1). Spreads the reconnects after a server restart. */
  readonly random: () => number;
  /** Whether the client can get a new token. */
  readonly canRefresh: boolean;
  /** Whether to try streams at all. */
  readonly streams: boolean;
}

const FAILURES_TO_POLLING = 3;
const GOOD_AFTER = 30;
const INTERVAL = 5;
const IDLE_INTERVAL = 30;
const HIDDEN_INTERVAL = 30;
const LIMITED_INTERVAL = 60;
const TRY_STREAM_EVERY = 60;
const BYE_WAIT = 2;
const LONGEST_BYE_WAIT = 60;
const LONGEST_RETRY_AFTER = 3600;

const POLL: Action = { do: "poll" };
const STREAM: Action = { do: "stream" };
const READ: Action = { do: "read" };
const NONE: Action = { do: "none" };
const STOP: Action = { do: "stop" };

/** There is no stream; polling works. */
const NO_STREAM = new Set([404, 405, 406, 501]);
/** Errors that a retry may solve. */
const PASSING = new Set([408, 425, 429]);

export class Machine {
  state: StateName = "connecting";
  /** True while polling has replaced the stream. */
  #fallback = false;
  #failures = 0;
  #interval = INTERVAL;
  /** When the stream is tried again. */
  #trialAt = 0;
  #openedAt: number | null = null;
  #brought = false;
  /** The immediate retry after a lost cursor has been used. */
  #restarted = false;
  #wasReset = false;
  #renewed = false;
  #hidden = false;
  #last: Action = NONE;
  #until = 0;
  /** The server asked for this wait, so it must not be cut short. */
  #named = false;

  constructor(readonly options: MachineOptions) {}

  tell(happened: Input): Action {
    if (happened.input === "hidden" || happened.input === "visible") return this.#seen(happened.input === "visible");
    if (happened.input === "interrupted") return this.#again();
    if (happened.input === "online") return this.#online();
    const action = this.#next(happened);
    if (action.do !== "refresh") this.#last = action;
    return action;
  }

  #next(happened: Event): Action {
    switch (happened.input) {
      case "start":
        return this.options.streams ? this.#stream() : this.#fallBack();
      case "opened":
        this.#openedAt = this.options.now();
        this.#brought = this.#renewed = this.#wasReset = false;
        return this.#read();
      case "news":
        this.#brought = true;
        this.#restarted = this.#wasReset = false;
        this.#proved();
        return this.#read();
      case "reset":
        this.#wasReset = true;
        return this.#read();
      case "ended":
        return this.#ended();
      case "bye":
        return this.#bye(happened.retry);
      case "stream_refused":
        return this.#streamRefused(happened.status, happened.retryAfter);
      case "page":
        return this.#page(happened.events, happened.more);
      case "unchanged":
        return this.#page(0, false);
      case "poll_refused":
        return this.#pollRefused(happened.status, happened.retryAfter);
      case "poll_failed":
        return this.#idle();
      case "elapsed":
        return this.#fallback ? this.#pollOrTry() : this.#stream();
      case "refreshed":
        return this.#last;
    }
  }

  #seen(visible: boolean): Action {
    this.#hidden = !visible;
    const idle = visible && this.#fallback && this.#last.do === "wait" && !this.#named;
    if (!idle) return NONE;
    this.#last = this.#pollOrTry();
    return this.#last;
  }

  /** The network is back: end the wait, unless the server asked for it. The stream comes first. */
  #online(): Action {
    if (this.#last.do !== "wait" || this.#named) return NONE;
    this.#trialAt = Math.min(this.#trialAt, this.options.now());
    this.#last = this.#fallback ? this.#pollOrTry() : this.#stream();
    return this.#last;
  }

  #again(): Action {
    if (this.#last.do === "wait") return { do: "wait", seconds: Math.max(0, this.#until - this.options.now()) };
    return this.#last.do === "read" ? (this.#last = this.#stream()) : this.#last;
  }

  #stream(): Action {
    this.#openedAt = null;
    this.state = this.#fallback ? "polling" : "connecting";
    return STREAM;
  }

  #read(): Action {
    this.state = "streaming";
    return READ;
  }

  /** The stream works: forget earlier failures. */
  #proved(): void {
    this.#failures = 0;
    this.#fallback = false;
    this.#interval = INTERVAL;
  }

  /** The stream has ended. True if it was useful: it brought events or stayed open long enough. */
  #closed(): boolean {
    const stood = this.#openedAt === null ? 0 : this.options.now() - this.#openedAt;
    const good = this.#openedAt !== null && (this.#brought || stood >= GOOD_AFTER);
    this.#openedAt = null;
    if (good) this.#proved();
    return good;
  }

  #ended(): Action {
    this.#closed();
    if (this.#wasReset && !this.#restarted) return this.#restart(this.#stream());
    return this.#failed(null);
  }

  /** The cursor was replaced: retry at once, but only once. */
  #restart(action: Action): Action {
    this.#wasReset = false;
    this.#restarted = true;
    return action;
  }

  #bye(retry: number | null): Action {
    const seconds = this.#lengthened(Math.min(Math.max(retry ?? BYE_WAIT, 1), LONGEST_BYE_WAIT));
    const good = this.#closed();
    if (!good && this.#countFailure()) {
      this.#fallBack();
      return this.#wait(seconds, "polling", true);
    }
    return this.#wait(seconds, "waiting", true);
  }

  #streamRefused(status: number, retryAfter: number | null): Action {
    if (status === 401) return this.#renew();
    this.#renewed = false;
    if (status === 410 && !this.#restarted) return this.#restart(this.#stream());
    if (NO_STREAM.has(status)) return this.#fallBack();
    return status === 410 || mayPass(status) ? this.#failed(retryAfter) : this.#stop();
  }

  #failed(retryAfter: number | null): Action {
    const asked = this.#asked(retryAfter);
    if (this.#countFailure()) {
      const poll = this.#fallBack();
      return asked > 0 ? this.#wait(asked, "polling", true) : poll;
    }
    const backoff = 2 ** this.#failures * (1 - this.options.random() / 2);
    return this.#wait(Math.max(backoff, asked), "waiting", asked > 0);
  }

  /** True when it is time to poll. */
  #countFailure(): boolean {
    this.#failures += 1;
    return this.#fallback || this.#failures >= FAILURES_TO_POLLING;
  }

  #fallBack(): Action {
    if (!this.#fallback) this.#trialAt = this.options.now() + TRY_STREAM_EVERY;
    this.#fallback = true;
    return this.#poll();
  }

  #poll(): Action {
    this.state = "polling";
    return POLL;
  }

  #pollOrTry(): Action {
    const now = this.options.now();
    if (!this.options.streams || now < this.#trialAt) return this.#poll();
    this.#trialAt = now + TRY_STREAM_EVERY;
    return this.#stream();
  }

  #page(events: number, more: boolean): Action {
    this.#renewed = false;
    if (events > 0) {
      this.#interval = INTERVAL;
      this.#restarted = false;
    }
    if (more) return this.#pollOrTry();
    return events > 0 ? this.#pause() : this.#idle();
  }

  #idle(): Action {
    this.#interval = Math.min(this.#interval * 1.5, IDLE_INTERVAL);
    return this.#pause();
  }

  #pause(asked = 0): Action {
    const least = this.#hidden ? HIDDEN_INTERVAL : 0;
    return this.#wait(Math.max(this.#interval, least, asked), "polling", asked > 0);
  }

  #pollRefused(status: number, retryAfter: number | null): Action {
    if (status === 401) return this.#renew();
    this.#renewed = false;
    if (status === 410 && !this.#restarted) return this.#restart(this.#poll());
    if (status !== 410 && !mayPass(status)) return this.#stop();
    this.#interval =
      status === 429 ? Math.min(this.#interval * 2, LIMITED_INTERVAL) : Math.min(this.#interval * 1.5, IDLE_INTERVAL);
    return this.#pause(this.#asked(retryAfter));
  }

  #renew(): Action {
    if (this.#renewed || !this.options.canRefresh) return this.#stop();
    this.#renewed = true;
    return { do: "refresh" };
  }

  #stop(): Action {
    this.state = "stopped";
    return STOP;
  }

  #wait(seconds: number, state: StateName, named: boolean): Action {
    this.state = state;
    this.#until = this.options.now() + seconds;
    this.#named = named;
    return { do: "wait", seconds };
  }

  #asked(retryAfter: number | null): number {
    return retryAfter === null ? 0 : this.#lengthened(Math.min(retryAfter, LONGEST_RETRY_AFTER));
  }

  #lengthened(seconds: number): number {
    return seconds * (1 + this.options.random() / 10);
  }
}

function mayPass(status: number): boolean {
  return status < 300 || status >= 500 || PASSING.has(status);
}
