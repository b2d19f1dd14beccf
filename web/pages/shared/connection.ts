/** How news comes, in words: always visible, explained on demand, and spoken when it changes. */

import { type FollowState } from "@aftercommit/client";
import { find } from "@aftercommit/ui";

export interface Said {
  readonly text: string;
  readonly why: string;
}

/** What is followed: one of them and many. */
export interface Things {
  readonly one: string;
  readonly many: string;
}

const seconds = (value: number): string => (value < 1 ? "a moment" : `${Math.round(value)} s`);

/** `left`: seconds until the next attempt or poll, counted down by the page. */
export function describe(state: FollowState, left: number | null, { one, many }: Things): Said {
  const reason = state.error ? ` ${state.error.message}` : "";
  switch (state.name) {
    case "connecting":
      return { text: "Connecting", why: `The live stream is being opened.${reason}` };
    case "streaming":
      return { text: "Live", why: `New ${many} arrive the moment they are written.` };
    case "polling":
      return {
        text: left === null ? "Polling" : `Polling, next in ${seconds(left)}`,
        why:
          `The live stream does not work at the moment, so the page asks for new ${many} every few seconds. ` +
          `The stream is tried again every minute.${reason}`,
      };
    case "waiting":
      return {
        text: left === null ? "Waiting" : `Waiting, retry in ${seconds(left)}`,
        why: `The live stream was interrupted and is opened again shortly. No ${one} is lost.${reason}`,
      };
    case "stopped":
      return { text: "Stopped", why: state.error?.message ?? "Nothing more is read." };
  }
}

/** The words in the page's `#connection`; a change is spoken through `#spoken`. */
export class Connection {
  readonly #badge = find("connection", HTMLElement);
  readonly #text = find("connection-text", HTMLElement);
  readonly #why = find("connection-why", HTMLElement);
  readonly #spoken = find("spoken", HTMLElement);
  #countdown: ReturnType<typeof setInterval> | undefined;

  constructor(readonly things: Things) {}

  show(state: FollowState): void {
    clearInterval(this.#countdown);
    const until = state.wait === null ? null : performance.now() + state.wait * 1000;
    const write = (): void => {
      const left = until === null ? null : Math.max(0, (until - performance.now()) / 1000);
      const said = describe(state, left, this.things);
      this.#text.textContent = said.text;
      this.#why.textContent = said.why;
      this.#badge.title = said.why;
    };
    const changed = this.#badge.dataset["state"] !== state.name;
    if (changed) this.#spoken.textContent = describe(state, null, this.things).text;
    this.#badge.dataset["state"] = state.name;
    write();
    if (until !== null) this.#countdown = setInterval(write, 1000);
  }
}
