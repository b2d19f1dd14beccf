/** The page's address: `/tasks/board`, `/tasks/board/7`, and the list's filters after `#`. Pure. */

import { type Turn } from "./words.js";

export interface Filters {
  readonly state: string;
  readonly turn: "" | Turn;
}

export interface Place {
  /** The task that is open. */
  readonly task: number | null;
  readonly filters: Filters;
}

export const STATES = ["new", "assigned", "reported", "rejected", "approved", "cancelled"] as const;
const TURNS: readonly Turn[] = ["mine", "others", "done"];

/** Ignores invalid parts of a link, so that the valid parts still work. */
export function parsePlace(path: string, fragment: string): Place {
  const said = new URLSearchParams(fragment.replace(/^#/, ""));
  const found = /\/board\/([1-9]\d{0,15})\/?$/.exec(path);
  return {
    task: found ? Number(found[1]) : null,
    filters: {
      state: STATES.find((state) => state === said.get("state")) ?? "",
      turn: TURNS.find((turn) => turn === said.get("move")) ?? "",
    },
  };
}

/** From the root of the site. */
export function formatPlace({ task, filters }: Place): string {
  const said = new URLSearchParams();
  if (filters.state !== "") said.set("state", filters.state);
  if (filters.turn !== "") said.set("move", filters.turn);
  const fragment = said.toString();
  return `tasks/board${task === null ? "" : `/${task}`}${fragment === "" ? "" : `#${fragment}`}`;
}
