/** Times in short form, with the full date and time as a tooltip. */

import { element } from "@aftercommit/ui";

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/** The time; with the day in front, unless it is today. */
export function brief(moment: Date, now: Date): string {
  const clock = CLOCK.format(moment);
  return moment.toDateString() === now.toDateString() ? clock : `${DAY.format(moment)}, ${clock}`;
}

export function timeOf(text: string): HTMLTimeElement {
  const moment = new Date(text);
  if (Number.isNaN(moment.getTime())) return element("time", {}, text);
  return element("time", { datetime: text, title: WHOLE.format(moment) }, brief(moment, new Date()));
}

/** The time left as "9:58"; null when it is over. */
export function countdown(until: number, now: number): string | null {
  const left = Math.ceil((until - now) / 1000);
  if (!(left > 0)) return null;
  return `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
}
