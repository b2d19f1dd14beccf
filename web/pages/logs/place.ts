/**
 * What the address says after its `#`: filters, and a place in the investigation. Never a token.
 *
 * A place is the cursor after which the line comes, and the line's own number: `#minLevel=WARN&after=…&line=42`. The
 * fragment stays in the browser, and a link to a place works for everyone who may read the investigation.
 */

import { LEVELS, type Level } from "./line.js";

export interface Filters {
  readonly minLevel: Level;
  readonly source: "" | "frontend" | "backend";
  readonly service: string;
}

export interface Place {
  /** The cursor to read after; null: from the beginning. */
  readonly after: string | null;
  /** The seq of the line that is meant. */
  readonly line: number;
}

export interface Address {
  readonly filters: Filters;
  readonly place: Place | null;
}

export const NO_FILTERS: Filters = { minLevel: "DEBUG", source: "", service: "" };

/** Nonsense in a link is left out rather than shown as an error: the rest of it still helps. */
export function parseAddress(fragment: string): Address {
  const said = new URLSearchParams(fragment.replace(/^#/, ""));
  const source = said.get("source");
  const line = Number(said.get("line"));
  return {
    filters: {
      minLevel: LEVELS.find((level) => level === said.get("minLevel")) ?? "DEBUG",
      source: source === "frontend" || source === "backend" ? source : "",
      service: (said.get("service") ?? "").slice(0, 100),
    },
    place: Number.isSafeInteger(line) && line > 0 ? { after: said.get("after"), line } : null,
  };
}

export function formatAddress({ filters, place }: Address): string {
  const said = new URLSearchParams(queryOf(filters));
  if (place?.after) said.set("after", place.after);
  if (place) said.set("line", String(place.line));
  const text = said.toString();
  return text === "" ? "" : `#${text}`;
}

/** The filters as the API takes them: what is not chosen is not sent. */
export function queryOf(filters: Filters): Record<string, string> {
  const query: Record<string, string> = {};
  if (filters.minLevel !== "DEBUG") query["minLevel"] = filters.minLevel;
  if (filters.source !== "") query["source"] = filters.source;
  if (filters.service !== "") query["service"] = filters.service;
  return query;
}
