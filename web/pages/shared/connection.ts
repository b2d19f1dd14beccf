/** The connection badge: always visible, with an explanation as a tooltip, and announced when it changes. */

import { type FollowState } from "@aftercommit/client";
import { find } from "@aftercommit/ui";

export interface Said {
  /** Sets the badge's colour: a state of the follower, or "checking". */
  readonly name: string;
  readonly text: string;
  readonly why: string;
}

/** The word for what is followed, in singular and plural. */
export interface Things {
  readonly one: string;
  readonly many: string;
}

/** What the badge shows besides the state. */
export interface Known {
  /** Seconds until the next attempt or poll. */
  readonly left: number | null;
  /** Seconds since the server last sent an event, a heartbeat or an answer; null: never. */
  readonly age: number | null;
  /** Seconds of silence after which the stream is in doubt. */
  readonly within: number | null;
  /** Why the stream is in doubt since the last sign of life. */
  readonly doubt: string | null;
}

const seconds = (value: number): string => (value < 1 ? "a moment" : `${Math.round(value)} s`);

/** "12 s", "3 min", "2 h". */
export function ageOf(value: number): string {
  if (value < 100) return `${Math.floor(value)} s`;
  return value < 5400 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

export function describe(state: FollowState, known: Known, things: Things): Said {
  const said = wordsFor(state, known, things);
  if (known.age === null) return said;
  const update = `last update ${ageOf(known.age)} ago`;
  // The age of the last update matters only while the page is not live.
  const text = said.name === "streaming" ? said.text : `${said.text} · ${update}`;
  return { ...said, text, why: `${said.why} ${update.replace("last", "Last")}.` };
}

function wordsFor(state: FollowState, { left, age, within, doubt }: Known, { one, many }: Things): Said {
  const { name } = state;
  const reason = state.error ? ` ${state.error.message}` : "";
  switch (name) {
    case "connecting":
      return { name, text: "Connecting", why: `Opening the live stream.${reason}` };
    case "streaming":
      if (doubt !== null) return { name: "checking", text: "Checking", why: doubt };
      if (age !== null && within !== null && age > within)
        return { name: "checking", text: "Checking", why: "The server has been silent for too long." };
      return { name, text: "Live", why: `New ${many} arrive as soon as they are written.` };
    case "polling":
      if (state.error) {
        const next = left === null ? "" : `, next try in ${seconds(left)}`;
        return { name, text: `Not connected${next}`, why: state.error.message };
      }
      return {
        name,
        text: left === null ? "Polling" : `Polling, next in ${seconds(left)}`,
        why:
          `The live stream is not available, so the page polls for new ${many} every few seconds. ` +
          "It tries the stream again every minute.",
      };
    case "waiting":
      return {
        name,
        text: left === null ? "Waiting" : `Waiting, retry in ${seconds(left)}`,
        why: `The live stream was interrupted. The page reconnects shortly, and no ${one} is lost.${reason}`,
      };
    case "stopped":
      return { name, text: "Stopped", why: state.error?.message ?? "Reading has stopped." };
  }
}

/** Writes the page's `#connection`, and announces changes through `#spoken`. */
export class Connection {
  readonly #badge = find("connection", HTMLElement);
  readonly #text = find("connection-text", HTMLElement);
  readonly #why = find("connection-why", HTMLElement);
  readonly #spoken = find("spoken", HTMLElement);
  #state: FollowState = { name: "connecting", wait: null, error: null };
  #until: number | null = null;
  #heard: number | null = null;
  #within: number | null = null;
  #doubt: string | null = null;

  constructor(readonly things: Things) {
    setInterval(() => this.#write(), 1000);
    // Timers run late in the background: update when the user returns.
    document.addEventListener("visibilitychange", () => this.#write());
  }

  show(state: FollowState): void {
    this.#state = state;
    this.#until = state.wait === null ? null : now() + state.wait;
    if (state.name !== "streaming") this.#doubt = null;
    this.#write();
  }

  /** The server sent something. `within`: seconds until the next sign of life is due; null: none is. */
  heard(within: number | null): void {
    this.#heard = now();
    this.#within = within;
    this.#doubt = null;
    this.#write();
  }

  /** Another request failed: until the next sign of life, the stream is in doubt. */
  doubt(why: string): void {
    if (this.#state.name === "streaming") this.#doubt = why;
    this.#write();
  }

  #write(): void {
    const known = {
      left: this.#until === null ? null : Math.max(0, this.#until - now()),
      age: this.#heard === null ? null : Math.max(0, now() - this.#heard),
      within: this.#within,
      doubt: this.#doubt,
    };
    const said = describe(this.#state, known, this.things);
    if (this.#badge.dataset["state"] !== said.name) {
      this.#badge.dataset["state"] = said.name;
      this.#spoken.textContent = wordsFor(this.#state, { ...known, left: null }, this.things).text;
    }
    this.#badge.dataset["trouble"] = String(this.#state.error !== null);
    this.#text.textContent = said.text;
    this.#why.textContent = said.why;
    this.#badge.title = said.why;
  }
}

/** The wall clock, so that the time in which the machine slept counts. */
function now(): number {
  return Date.now() / 1000;
}
