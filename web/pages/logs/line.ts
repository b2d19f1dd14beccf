/** One log as the API returns it, and as a line on the page. */

export const LEVELS = ["DEBUG", "INFO", "WARN", "ERROR"] as const;
export type Level = (typeof LEVELS)[number];

export interface Log {
  readonly event_id: string;
  readonly ts: string;
  readonly seq: number;
  readonly source: "frontend" | "backend";
  readonly service: string;
  readonly level: Level;
  readonly message: string;
  readonly investigation_id: string;
  readonly correlation_id?: string | null;
  readonly context?: Readonly<Record<string, unknown>> | null;
  readonly schema_version: number;
  /** Why the server hides the content of this log. */
  readonly withheld?: string;
}

export interface Line {
  readonly log: Log;
  /** Milliseconds since 1970, by the server's clock. */
  readonly time: number;
  /** The message on one row. */
  readonly text: string;
  /** The searched text in lower case; made on first use. */
  folded?: string;
  /** What is missing right before this line. */
  gap?: string;
}

const BREAKS = /[\r\n\u2028\u2029]+\s*/g;

/** Defaults for a withheld log: the server sends only its position. */
const UNTOLD = { source: "backend", service: "", level: "INFO", investigation_id: "", schema_version: 1 } as const;

/** A log that the follower reported as withheld. */
export function withheldLog(id: string, cursor: string, seq: number, withheld: string): Log {
  return { ...UNTOLD, event_id: id, ts: cursor.split("#")[0] as string, seq, message: "", withheld };
}

export function toLine(given: Log): Line {
  const log =
    given.withheld === undefined ? given : { ...UNTOLD, ...given, message: `[withheld: ${given.withheld}]` };
  return { log, time: Date.parse(log.ts), text: log.message.replace(BREAKS, " ⏎ ") };
}

/** The cursor of this log: reading after it begins with the next one. */
export function cursorOf(log: Log): string {
  return `${log.ts}#${String(log.seq).padStart(3, "0")}`;
}

/** The line as text, for pasting into a ticket. */
export function asText({ log }: Line): string {
  return `${log.ts} ${log.level} ${log.source}/${log.service} ${log.message}`;
}

export function foldedText(line: Line): string {
  line.folded ??= `${line.text}\n${line.log.service}\n${line.log.correlation_id ?? ""}`.toLowerCase();
  return line.folded;
}

const two = (value: number): string => String(value).padStart(2, "0");

/** 10:30:05.123 in the reader's time zone. Not Intl: this runs for every row that scrolls by. */
export function clockTime(time: number): string {
  const date = new Date(time);
  const milliseconds = String(date.getMilliseconds()).padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${milliseconds}`;
}

/** 2025-11-12 in the reader's time zone. */
export function dayOf(time: number): string {
  const date = new Date(time);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}
