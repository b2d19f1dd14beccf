/**
 * The address after `#`: filters and a place in the investigation, never a token.
 *
 * A place is the cursor before the line, and the line's number: `#minLevel=WARN&after=…&line=42`. The fragment stays
 * in the browser, and a link works for everyone who may read the investigation.
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
  /** The `seq` of the line. */
  readonly line: number;
}

export interface Address {
  readonly filters: Filters;
  readonly place: Place | null;
}

export const NO_FILTERS: Filters = { minLevel: "DEBUG", source: "", service: "" };

/** Ignores invalid parts of a link, so that the valid parts still work. */
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

/** The filters as query parameters; unset filters are left out. */
export function queryOf(filters: Filters): Record<string, string> {
  const query: Record<string, string> = {};
  if (filters.minLevel !== "DEBUG") query["minLevel"] = filters.minLevel;
  if (filters.source !== "") query["source"] = filters.source;
  if (filters.service !== "") query["service"] = filters.service;
  return query;
}
