/**
 * Loads part of the investigation and extends it: older lines before it, newer ones after it, live ones at the end.
 * Knows the feed and the lines, not the screen.
 *
 * The loaded part is *attached* when its last line is the newest one; then live lines are appended. It is detached
 * when the user looks at old lines and it is full, or after a jump: then live lines are only counted, and reading
 * forward attaches it again without a gap.
 */

import {
  FeedError,
  follow,
  type Feed,
  type FollowState,
  type Follower,
  type Gap,
  type Page,
  type PageRequest,
} from "@aftercommit/client";

import { cursorOf, toLine, withheldLog, type Log } from "./line.js";
import { type Lines } from "./lines.js";
import { queryOf, type Filters, type Place } from "./place.js";

const FIRST_PAGE = 500;
/** The server's largest page, so that fast scrolling stays below its request limit. */
const PAGE = 1000;
const LEAST = 10;
/** Seconds before the next request after a failed one; doubles each time, and the server may ask for longer. */
const REST = 2;
const LONGEST_REST = 60;
/** The cursor before the first stored log. */
const BEGINNING = "1970-01-01T00:00:00.000Z#000";

/** Position of a page; by default the newest. */
type Where = Pick<PageRequest, "after" | "before" | "fromTime">;

type LogPage = Page<Log> & { readonly logs: readonly Log[] };

export interface ReaderEvents {
  /** The lines changed. `shift`: lines added or removed before those that stay; null: all were replaced. */
  changed(shift: number | null): void;
  /** `attached`, `following`, `fresh`, `busy` or `older` changed. */
  stood(): void;
  state(state: FollowState): void;
  /** The server sent something. `within`: seconds until the next sign of life is due. */
  heard(within: number | null): void;
  /** A request got no answer. */
  unreachable(why: string): void;
  /** This many new lines arrived. */
  live(count: number): void;
  /** A message for the user. */
  notice(text: string): void;
  /** The log cannot be read: not allowed, or not found. */
  refused(error: FeedError): void;
}

export class Reader {
  attached = false;
  following = true;
  /** Live lines since the user stopped following. */
  fresh = 0;
  busy: "none" | "first" | "older" | "newer" = "none";
  /** Whether there may be lines before the first one. */
  older: "unknown" | "beginning" = "unknown";
  newestSeq = 0;
  #filters: Filters | undefined;
  #follower: Follower<Log> | undefined;
  #turn = new AbortController();
  /** Cancels the running jump to a time when the user goes elsewhere. */
  #lookUp = new AbortController();
  #rest: ReturnType<typeof setTimeout> | undefined;
  #nextRest = REST;
  #loads: Promise<unknown> = Promise.resolve();
  /** The last newer page ended before a line that is already known. */
  #behind = false;
  #previous: string | null = null;
  #next: string | null = null;

  constructor(
    readonly feed: Feed<Log>,
    readonly lines: Lines,
    readonly events: ReaderEvents,
  ) {}

  /** Start over at the newest lines or at a place. False when refused or cancelled by another start. */
  async start(filters: Filters, place: Place | null): Promise<boolean> {
    const turn = this.#begin(filters);
    return this.#guarded(turn, async () => {
      if (place) await this.#startAt(turn, { after: place.after ?? BEGINNING });
      else await this.#startAtEnd(turn);
      if (place?.after === null) this.older = "beginning";
    });
  }

  /** Stop reading; `start` begins again. */
  stop(): void {
    this.#turn.abort();
    this.#lookUp.abort();
    this.#follower?.stop();
    clearTimeout(this.#rest);
    this.#rest = undefined;
  }

  /** Follow the newest lines again. */
  async follow(): Promise<void> {
    this.#lookUp.abort();
    if (this.attached) {
      this.following = true;
      this.fresh = 0;
      this.events.stood();
    } else if (this.#filters) {
      await this.start(this.#filters, null);
    }
  }

  /** Go to the first stored line. False when it could not be loaded or another start cancelled this one. */
  async toBeginning(): Promise<boolean> {
    this.#lookUp.abort();
    if (this.older !== "beginning" && this.#filters) await this.start(this.#filters, { after: null, line: 1 });
    return this.older === "beginning";
  }

  pause(): void {
    this.following = false;
    this.events.stood();
  }

  /** Lines from a time on: already loaded, fetched now, or not available (an error, or cancelled). */
  async goTo(time: number): Promise<"here" | "fetched" | "nowhere"> {
    this.#lookUp.abort();
    const first = this.lines.first;
    const last = this.lines.last;
    const begun = first && (first.time <= time || this.older === "beginning");
    if (!this.#filters) return "nowhere";
    // While a new start is loading, the old lines do not count.
    if (begun && last && time <= last.time && this.busy !== "first") return "here";
    this.#lookUp = new AbortController();
    const page = await this.#pageOf(time, this.#lookUp.signal);
    if (!page) return "nowhere";
    const turn = this.#begin(this.#filters);
    return (await this.#guarded(turn, () => this.#show(turn, page))) ? "fetched" : "nowhere";
  }

  /** Resolves when the running load is done. */
  get settled(): Promise<unknown> {
    return this.#loads;
  }

  async loadOlder(): Promise<void> {
    const first = this.lines.first;
    const before = this.#previous ?? (first ? cursorOf(first.log) : null);
    if (before === null || this.busy !== "none" || this.older !== "unknown" || this.#rest) return;
    await this.#loading("older", async (turn) => {
      const page = await this.#page(turn, { before });
      this.#previous = page.previous;
      if (page.previous === null) this.older = "beginning";
      const { added, dropped } = this.lines.prepend(page.logs.map(toLine));
      if (dropped > 0) this.#detach();
      this.events.changed(added);
    });
  }

  async loadNewer(): Promise<void> {
    const last = this.lines.last;
    if (!last || this.attached || this.busy !== "none" || this.#rest) return;
    const after = this.#next ?? cursorOf(last.log);
    await this.#loading("newer", async (turn) => {
      const page = await this.#page(turn, { after });
      this.#take(page);
      // A live line may have arrived meanwhile: then there is more, whatever the page says.
      this.attached = !page.more && (this.lines.last?.log.seq ?? 0) >= this.newestSeq;
      this.#mindBehind(!page.more && !this.attached);
    });
  }

  #begin(filters: Filters): AbortSignal {
    this.stop();
    this.#turn = new AbortController();
    this.#filters = filters;
    this.#previous = this.#next = null;
    this.attached = false;
    this.fresh = 0;
    this.newestSeq = 0;
    this.older = "unknown";
    this.busy = "first";
    this.events.stood();
    return this.#turn.signal;
  }

  async #startAtEnd(turn: AbortSignal): Promise<void> {
    const page = await this.#page(turn, {}, FIRST_PAGE);
    this.lines.clear();
    this.following = true;
    this.attached = true;
    // With rare matches the server stops searching at some point, perhaps without a match, and says where.
    this.#previous = page.previous;
    if (page.logs[0]?.seq === 1) this.older = "beginning";
    this.lines.append(page.logs.map(toLine));
    this.newestSeq = this.lines.last?.log.seq ?? 0;
    this.events.changed(null);
    this.#followFrom(page.next);
  }

  async #startAt(turn: AbortSignal, where: Where): Promise<void> {
    await this.#show(turn, await this.#page(turn, where, FIRST_PAGE));
  }

  /** The page at a time; on failure null and a message to the user. */
  async #pageOf(time: number, asked: AbortSignal): Promise<LogPage | null> {
    try {
      const page = await this.#page(asked, { fromTime: new Date(time) }, FIRST_PAGE);
      return asked.aborted ? null : page;
    } catch (error) {
      if (asked.aborted) return null;
      if (!(error instanceof FeedError)) throw error;
      if (error.status === 0) this.events.unreachable(error.message);
      this.events.notice(error.message);
      return null;
    }
  }

  async #show(turn: AbortSignal, page: LogPage): Promise<void> {
    if (page.logs.length === 0) {
      await this.#startAtEnd(turn);
      return;
    }
    this.lines.clear();
    this.following = false;
    this.lines.append(page.logs.map(toLine));
    this.newestSeq = this.lines.last?.log.seq ?? 0;
    this.#next = page.next;
    this.attached = !page.more;
    this.events.changed(null);
    // Follow from the end, also when the user looks at another place.
    const end = this.attached ? page : await this.#page(turn, {}, LEAST);
    this.newestSeq = Math.max(this.newestSeq, end.logs.at(-1)?.seq ?? 0);
    this.#followFrom(end.next);
  }

  #followFrom(after: string | null): void {
    const filters = queryOf(this.#filters as Filters);
    this.#follower = follow(this.feed, {
      after,
      filters,
      sequence: Object.keys(filters).length === 0,
      onItems: (logs) => this.#live(logs),
      onState: (state) => this.events.state(state),
      onHeard: (within) => this.events.heard(within),
      onGap: (gap) => this.#gap(gap),
      onRefused: (error) => this.events.refused(error),
    });
  }

  #live(logs: readonly Log[]): void {
    this.newestSeq = Math.max(this.newestSeq, logs.at(-1)?.seq ?? 0);
    if (this.attached && !this.following && this.lines.length + logs.length > this.lines.most) this.#detach();
    let shift = 0;
    let added = logs.length;
    if (this.attached) {
      const change = this.lines.append(logs.map(toLine));
      shift = -change.dropped;
      added = change.added;
      if (change.dropped > 0) this.#forgetOlder();
    }
    if (!this.following) this.fresh += added;
    this.events.live(added);
    this.events.changed(shift);
    this.events.stood();
  }

  /** Lines at the beginning were dropped, so there are older ones to load again. */
  #forgetOlder(): void {
    this.#previous = null;
    if (this.older === "beginning") this.older = "unknown";
  }

  #gap(gap: Gap): void {
    if (gap.kind === "withheld" && gap.number !== null && gap.cursor !== null) {
      this.#live([withheldLog(gap.id, gap.cursor, gap.number, gap.reason)]);
      return;
    }
    this.events.notice(
      gap.kind === "missing"
        ? `Lines ${gap.expected} to ${gap.got - 1} are missing. Reload the page to try again.`
        : gap.kind === "withheld"
          ? "The server cannot show one of the lines."
          : "The server no longer has some of the lines. Showing those it still has.",
    );
  }

  #detach(): void {
    this.attached = false;
    this.#next = null;
  }

  #take(page: LogPage): void {
    const { dropped } = this.lines.append(page.logs.map(toLine));
    if (page.next !== null) this.#next = page.next;
    if (dropped > 0) this.#forgetOlder();
    this.events.changed(-dropped);
  }

  async #page(turn: AbortSignal, where: Where, limit = PAGE): Promise<LogPage> {
    const filters = queryOf(this.#filters as Filters);
    // A request without an ETag always returns a page.
    const page = (await this.#asked({ ...where, limit, filters, signal: turn })) as Page<Log>;
    this.#nextRest = REST;
    return { ...page, logs: page.events.map(({ item }) => item) };
  }

  /** A refused token is renewed once. */
  async #asked(request: PageRequest): Promise<Page<Log> | null> {
    try {
      return await this.feed.page(request);
    } catch (error) {
      if (!(error instanceof FeedError) || error.status !== 401) throw error;
      await this.feed.refresh();
      return this.feed.page(request);
    }
  }

  async #loading(what: "older" | "newer", load: (turn: AbortSignal) => Promise<void>): Promise<void> {
    const turn = this.#turn.signal;
    this.busy = what;
    this.events.stood();
    await (this.#loads = this.#guarded(turn, () => load(turn)));
  }

  /** Run a load. One that another start has cancelled reports nothing. False when it failed or was cancelled. */
  async #guarded(turn: AbortSignal, load: () => Promise<void>): Promise<boolean> {
    let done = true;
    try {
      await load();
    } catch (error) {
      if (turn.aborted) return false;
      if (!(error instanceof FeedError)) throw error;
      if (error.status === 0) this.events.unreachable(error.message);
      done = false;
      await this.#failed(error);
    }
    if (turn.aborted) return false;
    this.busy = "none";
    this.events.stood();
    return done;
  }

  /** Once: a live line overtook the page. Twice: this server process lags behind, so give it time. */
  #mindBehind(behind: boolean): void {
    if (behind && this.#behind) this.#restFor(REST, true);
    this.#behind = behind;
  }

  /** Pause page requests. Afterwards `again` triggers a new attempt. */
  #restFor(seconds: number, again: boolean): void {
    this.#rest = setTimeout(() => {
      this.#rest = undefined;
      if (again) this.events.stood();
    }, seconds * 1000);
  }

  async #failed(error: FeedError): Promise<void> {
    const filters = this.#filters as Filters;
    if (this.busy === "first" && error.status === 410) {
      this.events.notice("The server no longer has that line. Showing the newest lines.");
      await this.start(filters, null);
    } else if (this.busy === "first") {
      this.events.refused(error);
    } else {
      this.#restFor(Math.max(this.#nextRest, error.retryAfter ?? 0), mayPass(error.status));
      this.#nextRest = Math.min(2 * this.#nextRest, LONGEST_REST);
      this.events.notice(error.message);
    }
  }
}

/** Whether a retry may succeed: no answer, too many requests, or a server error. */
function mayPass(status: number): boolean {
  return status === 0 || status === 429 || status >= 500;
}
