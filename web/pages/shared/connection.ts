/** How news comes, in words: always visible, explained on demand, and spoken when it changes. */

import { type FollowState } from "@aftercommit/client";
import { find } from "@aftercommit/ui";

export interface Said {
  /** What the badge is coloured by: a state of the follower's, or "checking". */
  readonly name: string;
  readonly text: string;
  readonly why: string;
}

/** What is followed: one of them and many. */
export interface Things {
  readonly one: string;
  readonly many: string;
}

/** What the page knows besides the state. */
export interface Known {
  /** Seconds until the next attempt or poll. */
  readonly left: number | null;
  /** Seconds since the server was last heard: an event, a heartbeat, an answer; null: not yet. */
  readonly age: number | null;
  /** Seconds after which a stream is not believed any more without a word. */
  readonly within: number | null;
  /** Why the stream is doubted, since it was last heard. */
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
  // What is live is live: how old the last word is matters as soon as it is not.
  const text = said.name === "streaming" ? said.text : `${said.text} · ${update}`;
  return { ...said, text, why: `${said.why} ${update.replace("last", "Last")}.` };
}

function wordsFor(state: FollowState, { left, age, within, doubt }: Known, { one, many }: Things): Said {
  const { name } = state;
  const reason = state.error ? ` ${state.error.message}` : "";
  switch (name) {
    case "connecting":
      return { name, text: "Connecting", why: `The live stream is being opened.${reason}` };
    case "streaming":
      if (doubt !== null) return { name: "checking", text: "Checking", why: doubt };
      if (age !== null && within !== null && age > within)
        return { name: "checking", text: "Checking", why: "Nothing has been heard from the server for too long." };
      return { name, text: "Live", why: `New ${many} arrive the moment they are written.` };
    case "polling":
      if (state.error) {
        const next = left === null ? "" : `, next try in ${seconds(left)}`;
        return { name, text: `Not connected${next}`, why: state.error.message };
      }
      return {
        name,
        text: left === null ? "Polling" : `Polling, next in ${seconds(left)}`,
        why:
          `The live stream does not work at the moment, so the page asks for new ${many} every few seconds. ` +
          "The stream is tried again every minute.",
      };
    case "waiting":
      return {
        name,
        text: left === null ? "Waiting" : `Waiting, retry in ${seconds(left)}`,
        why: `The live stream was interrupted and is opened again shortly. No ${one} is lost.${reason}`,
      };
    case "stopped":
      return { name, text: "Stopped", why: state.error?.message ?? "Nothing more is read." };
  }
}

/** The words in the page's `#connection`; a change is spoken through `#spoken`. */
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
    // In the background timers come late: whoever looks again sees what is so now.
    document.addEventListener("visibilitychange", () => this.#write());
  }

  show(state: FollowState): void {
    this.#state = state;
    this.#until = state.wait === null ? null : now() + state.wait;
    if (state.name !== "streaming") this.#doubt = null;
    this.#write();
  }

  /** The server was heard. `within`: seconds in which it should be heard again; null where nothing is expected. */
  heard(within: number | null): void {
    this.#heard = now();
    this.#within = within;
    this.#doubt = null;
    this.#write();
  }

  /** Something else that was asked of the server failed: until it is heard again, nothing is live. */
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

/** By the wall: what the machine slept counts. A clock that is set back makes nothing younger than it is by much. */
function now(): number {
  return Date.now() / 1000;
}
