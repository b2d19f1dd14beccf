/** How the lines come, in words: always visible, explained on demand, and spoken when it changes. */

import { type FollowState } from "@aftercommit/client";

export interface Said {
  readonly text: string;
  readonly why: string;
}

const seconds = (value: number): string => (value < 1 ? "a moment" : `${Math.round(value)} s`);

/** `left`: seconds until the next attempt or poll, counted down by the page. */
export function describe(state: FollowState, left: number | null): Said {
  const reason = state.error ? ` ${state.error.message}` : "";
  switch (state.name) {
    case "connecting":
      return { text: "Connecting", why: `The live stream is being opened.${reason}` };
    case "streaming":
      return { text: "Live", why: "New lines arrive the moment they are written." };
    case "polling":
      return {
        text: left === null ? "Polling" : `Polling, next in ${seconds(left)}`,
        why:
          "The live stream does not work at the moment, so the page asks for new lines every few seconds. " +
          `The stream is tried again every minute.${reason}`,
      };
    case "waiting":
      return {
        text: left === null ? "Waiting" : `Waiting, retry in ${seconds(left)}`,
        why: `The live stream was interrupted and is opened again shortly. No line is lost.${reason}`,
      };
    case "stopped":
      return { text: "Stopped", why: state.error?.message ?? "Nothing more is read." };
  }
}
