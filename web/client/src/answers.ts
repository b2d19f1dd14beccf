/** Reads answers to polls, as `conformance/answers.yaml` defines them. */

import type { Range } from "./trail.js";

/** How a feed writes its pages: an object with `pagination`, or a bare array whose `event_id` is the cursor. */
export type BodyKind = "paged" | "array";

export interface Read<Item> {
  readonly item: Item;
  readonly id: string;
  /** The number in the strand; undefined where there is none. */
  readonly number: number | undefined;
  /** The cursor of this event; null where it is unknown. */
  readonly cursor: string | null;
  /** Why the server withheld the event; null for a normal event. The `item` of a withheld event has only its position. */
  readonly withheld: string | null;
}

export interface Page<Item> {
  readonly events: readonly Read<Item>[];
  /** The cursor to continue with; null: keep your own. */
  readonly next: string | null;
  /**
   * The cursor to read further back; null at the beginning, and for a page that was read forward. The newest page has
   * one if the server stopped before it had looked at all events.
   */
  readonly previous: string | null;
  /** There are more events; ask again to get them. */
  readonly more: boolean;
  readonly etag: string | null;
  /** How many events the strand holds, where the server says so. */
  readonly total: number | null;
  /** Ranges of numbers before these events that no event has. */
  readonly neverGiven: readonly Range[];
}

/** The server refused the request, or its answer could not be read. */
export class FeedError extends Error {
  override readonly name = "FeedError";

  constructor(
    /** The HTTP status; 0 without a readable answer. */
    readonly status: number,
    /** `bad_request`, `unauthorized`, `forbidden`, `not_found`, `gone`, …; null when the body does not say. */
    readonly code: string | null,
    message: string,
    /** Seconds to wait, if the server says so. */
    readonly retryAfter: number | null = null,
    readonly details: Readonly<Record<string, unknown>> = {},
  ) {
    super(message);
  }

  /** After 410: the cursor to restart from; null: the newest. */
  get restart(): string | null {
    return textOrNull(this.details["restart"]);
  }
}

/** The request: after a cursor (null: the newest), or back from one. */
export interface Asked {
  readonly after: string | null;
  readonly back: boolean;
}

/** Returns a page, or null for "nothing new"; throws a FeedError. */
export function readAnswer<Item>(
  kind: BodyKind,
  { after, back }: Asked,
  status: number,
  headers: Headers,
  text: string,
): Page<Item> | null {
  if (status === 304) return null;
  if (status !== 200) throw refusal(status, headers, text);
  const body = parsed(text);
  const page = kind === "array" ? arrayPage<Item>(body, headers) : pagedPage<Item>(body, headers);
  // Reading back does not move the cursor.
  const next = back ? null : page.next;
  const total = Number(headers.get("x-total-count") ?? NaN);
  return {
    ...page,
    next,
    more: page.more && next !== null && next !== after,
    etag: headers.get("etag"),
    neverGiven: ranges(headers.get("x-never-given") ?? ""),
    total: Number.isSafeInteger(total) ? total : null,
  };
}

/** An event of the stream or a page, with its id, number and cursor. */
export function readEvent<Item>(kind: BodyKind, value: unknown): Read<Item> {
  if (!isObject(value)) throw unreadable("an event is not an object");
  const id = value["event_id"];
  if (typeof id !== "string" && typeof id !== "number") throw unreadable("an event has no event_id");
  const { ts, seq } = value;
  const number = typeof seq === "number" ? seq : undefined;
  const withheld = withheldIn(value);
  const placed = typeof ts === "string" && number !== undefined;
  const paged = placed ? `${ts}#${String(number).padStart(3, "0")}` : withheld === null ? null : positionIn(value);
  return { item: value as Item, id: String(id), number, cursor: kind === "array" ? String(id) : paged, withheld };
}

/** The only fields of a withheld event. An item with other fields is a normal event that may have its own `withheld`. */
const NOTE: ReadonlySet<string> = new Set(["event_id", "ts", "seq", "position", "withheld"]);

function withheldIn(value: Record<string, unknown>): string | null {
  return Object.keys(value).every((key) => NOTE.has(key)) ? textOrNull(value["withheld"]) || null : null;
}

/** Only withheld events carry their cursor as `position`; in other items the name is free. */
function positionIn({ position }: Record<string, unknown>): string | null {
  return typeof position === "number" ? String(position) : null;
}

export function refusal(status: number, headers: Headers, text: string): FeedError {
  const body = parsedOrEmpty(text);
  const message = textOrNull(body["message"]) ?? `The server responded with status ${status}.`;
  const details = isObject(body["details"]) ? body["details"] : {};
  return new FeedError(status, textOrNull(body["error"]), message, secondsToWait(headers, body), details);
}

/** The details of a `reset`; empty if it has none that can be read. */
export function resetDetails(data: string): Readonly<Record<string, unknown>> {
  const body = parsedOrEmpty(data);
  return isObject(body["details"]) ? body["details"] : body;
}

export function unreadable(reason: string): FeedError {
  return new FeedError(0, "unreadable", `This is not an answer of this feed (${reason}). Check the address.`);
}

export function unreachable(cause: unknown): FeedError {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new FeedError(0, "unreachable", `Cannot reach the server: ${reason}`);
}

type Bare<Item> = Omit<Page<Item>, "etag" | "total" | "neverGiven">;

function ranges(text: string): Range[] {
  return [...text.matchAll(/(\d{1,16})-(\d{1,16})/g)].map(([, low, high]) => [Number(low), Number(high)]);
}

function pagedPage<Item>(body: unknown, headers: Headers): Bare<Item> {
  const pagination = isObject(body) ? body["pagination"] : undefined;
  if (!isObject(body) || !isObject(pagination)) throw unreadable('there is no object "pagination"');
  const list = Object.values(body).find((value) => Array.isArray(value));
  if (!Array.isArray(list)) throw unreadable("there is no list of events");
  return {
    events: list.map((value) => readEvent<Item>("paged", value)),
    // At the end of a strand the body has none, and a header says how far the filters have searched.
    next: textOrNull(pagination["nextCursor"]) ?? headers.get("x-next-cursor"),
    previous: textOrNull(pagination["previousCursor"]),
    more: pagination["hasMore"] === true,
  };
}

function arrayPage<Item>(body: unknown, headers: Headers): Bare<Item> {
  if (!Array.isArray(body)) throw unreadable("expected a list");
  const events = body.map((value) => readEvent<Item>("array", value));
  return {
    events,
    next: headers.get("x-next-cursor") ?? events.at(-1)?.cursor ?? null,
    previous: headers.get("x-previous-cursor"),
    more: headers.get("x-has-more") === "true",
  };
}

export function parsed(text: string, otherwise = "not JSON"): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw unreadable(otherwise);
  }
}

function parsedOrEmpty(text: string): Record<string, unknown> {
  try {
    const body = JSON.parse(text) as unknown;
    return isObject(body) ? body : {};
  } catch {
    return {};
  }
}

/** The header wins over the body. Dates are ignored: they would depend on two clocks. */
function secondsToWait(headers: Headers, body: Record<string, unknown>): number | null {
  const header = headers.get("retry-after");
  if (header !== null && /^\d+$/.test(header.trim())) return Number(header);
  const said = body["retry_after"];
  return typeof said === "number" && said >= 0 ? said : null;
}

const LONGEST_BEAT = 300;

/** Seconds of silence before a stream counts as lost: twice the announced heartbeat interval plus one, because one
 * heartbeat may be late or lost. Null if the server announces none. */
export function silenceOf(interval: string | null): number | null {
  if (interval === null || !/^[0-9]{1,3}(\.[0-9]{1,3})?$/.test(interval)) return null;
  const seconds = Number(interval);
  return seconds > 0 && seconds <= LONGEST_BEAT ? 2 * seconds + 1 : null;
}

function textOrNull(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
