/**
 * Which piece of the investigation is loaded, and how it grows: older lines before it, newer ones after it, live ones
 * at the end. Knows the feed and the lines, and nothing of the screen.
 *
 * The piece is *attached* when its last line is the newest there is; then live lines are appended. When the reader
 * looks at old lines and the piece is full, or jumped somewhere else, it is detached: live lines are only counted, and
 * going on reading forwards attaches it again without a hole.
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
/** As many as the server gives at once: a reader who scrolls fast stays below its limit on requests. */
const PAGE = 1000;
const LEAST = 10;
/** After a page failed, the next is not asked for so many seconds, each time longer; the server may ask for more. */
const REST = 2;
const LONGEST_REST = 60;
/** After this comes the first log that is kept. */
const BEGINNING = "1970-01-01T00:00:00.000Z#000";

/** Where a page lies; without any of these it is the newest. */
type Where = Pick<PageRequest, "after" | "before" | "fromTime">;

type LogPage = Page<Log> & { readonly logs: readonly Log[] };

export interface ReaderEvents {
  /** Lines came or went. `shift`: how many more (or fewer) stand before the ones that stay; null: all are others. */
  changed(shift: number | null): void;
  /** `attached`, `following`, `fresh`, `busy` or `older` is another. */
  stood(): void;
  state(state: FollowState): void;
  /** The server was heard; seconds in which it should be heard again. */
  heard(within: number | null): void;
  /** A request got no answer. */
  unreachable(why: string): void;
  /** So many lines just came. */
  live(count: number): void;
  /** Something the reader should know, in a sentence. */
  notice(text: string): void;
  /** It cannot be read at all: not allowed, or not there. */
  refused(error: FeedError): void;
}

export class Reader {
  attached = false;
  following = true;
  /** Live lines that came since the reader stopped following. */
  fresh = 0;
  busy: "none" | "first" | "older" | "newer" = "none";
  /** What there is before the first line: perhaps more, or nothing. */
  older: "unknown" | "beginning" = "unknown";
  newestSeq = 0;
  #filters: Filters | undefined;
  #follower: Follower<Log> | undefined;
  #turn = new AbortController();
  /** The time that is being looked up; whoever goes elsewhere wants to hear of it no more. */
  #lookUp = new AbortController();
  #rest: ReturnType<typeof setTimeout> | undefined;
  #nextRest = REST;
  #loads: Promise<unknown> = Promise.resolve();
  /** The last page on ended before a line that is known already. */
  #behind = false;
  #previous: string | null = null;
  #next: string | null = null;

  constructor(
    readonly feed: Feed<Log>,
    readonly lines: Lines,
    readonly events: ReaderEvents,
  ) {}

  /** Begin anew: at the newest lines, or at a place. False when it did not get there: refused, or overtaken. */
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

  /** Stick to the newest line again. */
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

  /** The very first line that is kept. False when it is not here: it could not be had, or another beginning overtook. */
  async toBeginning(): Promise<boolean> {
    this.#lookUp.abort();
    if (this.older !== "beginning" && this.#filters) await this.start(this.#filters, { after: null, line: 1 });
    return this.older === "beginning";
  }

  pause(): void {
    this.following = false;
    this.events.stood();
  }

  /** Lines from a moment on: they are here already, or were fetched; or none could be had, or another move overtook. */
  async goTo(time: number): Promise<"here" | "fetched" | "nowhere"> {
    this.#lookUp.abort();
    const first = this.lines.first;
    const last = this.lines.last;
    const begun = first && (first.time <= time || this.older === "beginning");
    if (!this.#filters) return "nowhere";
    // While other lines are being fetched, those that are still here are no answer.
    if (begun && last && time <= last.time && this.busy !== "first") return "here";
    this.#lookUp = new AbortController();
    const page = await this.#pageOf(time, this.#lookUp.signal);
    if (!page) return "nowhere";
    const turn = this.#begin(this.#filters);
    return (await this.#guarded(turn, () => this.#show(turn, page))) ? "fetched" : "nowhere";
  }

  /** Resolves when what is being loaded at either end is there. */
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
      // A live line may have come while the page was under way: then there is more, whatever the page says.
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
    // With rare matches the server stops looking at some point, perhaps before it found any, and says where.
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

  /** The page of a moment; null, and a word to the reader, when it cannot be had. */
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
    // Live lines come from the end, also when the reader looks at another place.
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

  /** Lines at the beginning are gone from here, so there are older ones to load again. */
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
        ? `Lines ${gap.expected} to ${gap.got - 1} did not arrive. Reload the page to look again.`
        : gap.kind === "withheld"
          ? "The server could not show a line."
          : "Some lines are no longer kept by the server. What follows is what it still has.",
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
    // Without a tag in the request there is always a page.
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

  /** Run a load; one that was overtaken by another beginning says nothing any more. False when it came to nothing. */
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

  /** Once is a line that overtook the page; twice is a server process that has not heard of it, and gets time to. */
  #mindBehind(behind: boolean): void {
    if (behind && this.#behind) this.#restFor(REST, true);
    this.#behind = behind;
  }

  /** Ask for no page in so many seconds; then `again` has whoever still wants one ask. */
  #restFor(seconds: number, again: boolean): void {
    this.#rest = setTimeout(() => {
      this.#rest = undefined;
      if (again) this.events.stood();
    }, seconds * 1000);
  }

  async #failed(error: FeedError): Promise<void> {
    const filters = this.#filters as Filters;
    if (this.busy === "first" && error.status === 410) {
      this.events.notice("That place is no longer kept by the server. These are the newest lines.");
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

/** Whether the same request may be answered later on: no answer at all, too many of them, or a server in trouble. */
function mayPass(status: number): boolean {
  return status === 0 || status === 429 || status >= 500;
}
