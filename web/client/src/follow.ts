/**
 * Follows a feed: delivers each event once and in order, over the stream or by polling.
 *
 * The machine decides what to do next, the trail remembers the position, and this module does the work. Nothing more is
 * read until `onItems` is done, and only then does the cursor move.
 */

import { FeedError, parsed, readEvent, resetDetails, unreachable, type Page, type Read } from "./answers.js";
import { Alarm, REAL_CLOCK, type Clock } from "./clock.js";
import { type Feed } from "./feed.js";
import { Machine, type Action, type Input, type StateName } from "./machine.js";
import { pageNetwork } from "./network.js";
import { type FollowOptions, type FollowState, type Patience } from "./options.js";
import { SseDecoder, type SseSignal } from "./sse.js";
import { Trail, withheldGap } from "./trail.js";
import { pageVisibility } from "./visibility.js";

/** Event names on the stream that carry no item. */
const RESERVED = new Set(["bye", "reset", "heartbeat", "hold"]);
const PATIENCE: Patience = { firstBytes: 10, silence: 45, answer: 30 };

/** Start following. It ends with `stop`, or when the server refuses for good. */
export function follow<Item>(feed: Feed<Item>, options: FollowOptions<Item>): Follower<Item> {
  return new Follower(feed, options);
}

export class Follower<Item> {
  /** Resolves when following has ended; rejects only when a callback throws. */
  readonly done: Promise<void>;
  readonly #machine: Machine;
  readonly #trail: Trail;
  readonly #patience: Patience;
  readonly #clock: Clock;
  readonly #end = new AbortController();
  /** Ends the current wait and does this instead. */
  #cut: ((instead: Action) => void) | null = null;
  #reached: string | null;
  #told: FollowState | null = null;
  #error: FeedError | null = null;
  /** Aborts the current request. */
  #breakOff = (): void => {};
  #etag: { readonly cursor: string | null; readonly tag: string | null } = { cursor: null, tag: null };

  constructor(
    readonly feed: Feed<Item>,
    readonly options: FollowOptions<Item>,
  ) {
    this.#trail = new Trail(options.after ?? null, options.sequence);
    this.#reached = this.#trail.cursor;
    this.#patience = { ...PATIENCE, ...options.patience };
    this.#clock = options.clock ?? REAL_CLOCK;
    this.#machine = new Machine({
      now: this.#clock.now,
      random: options.random ?? Math.random,
      canRefresh: feed.canRefresh,
      streams: options.streams ?? true,
    });
    const visibility = options.visibility ?? pageVisibility();
    const unwatch = [
      visibility.watch((visible) => this.#seen({ input: visible ? "visible" : "hidden" })),
      (options.network ?? pageNetwork()).watch((online) => (online ? this.#seen({ input: "online" }) : this.#breakOff())),
    ];
    if (!visibility.visible()) this.#machine.tell({ input: "hidden" });
    this.done = this.#run().finally(() => unwatch.forEach((end) => end()));
  }

  /** The cursor up to which all events are delivered and handled. Another follower can continue from here. */
  get cursor(): string | null {
    return this.#reached;
  }

  get state(): StateName {
    return this.#end.signal.aborted ? "stopped" : this.#machine.state;
  }

  /** Stop following. No more events are delivered. */
  stop(): void {
    this.#end.abort();
    this.#cut?.({ do: "none" });
  }

  async #run(): Promise<void> {
    let action = this.#tell({ input: "start" });
    while (!this.#end.signal.aborted && action.do !== "stop") action = await this.#act(action);
    if (!this.#end.signal.aborted && this.#error) this.options.onRefused?.(this.#error);
    this.#end.abort();
  }

  async #act(action: Action): Promise<Action> {
    switch (action.do) {
      case "stream":
        return this.#stream();
      case "poll":
        return this.#poll();
      case "wait":
        return this.#wait(action.seconds);
      case "refresh":
        return this.#refresh();
      case "read":
      case "stop":
      case "none":
        throw new Error(`cannot start with "${action.do}"`);
    }
  }

  #tell(input: Input): Action {
    return this.#announce(this.#machine.tell(input));
  }

  #announce(action: Action): Action {
    const state = {
      name: this.#machine.state,
      wait: action.do === "wait" ? action.seconds : null,
      error: this.#error,
    };
    const told = this.#told;
    this.#told = state;
    if ((state.name !== told?.name || state.wait !== told.wait || state.error !== told.error) && !this.#end.signal.aborted) this.options.onState?.(state);
    return action;
  }

  // --- waiting

  #wait(seconds: number): Promise<Action> {
    // The wait may already be over: the page became visible, or the network came back.
    const now = this.#machine.tell({ input: "interrupted" });
    if (now.do !== "wait") return Promise.resolve(this.#announce(now));
    return new Promise((resolve) => {
      const cancel = this.#clock.after(seconds, () => this.#cut?.(this.#tell({ input: "elapsed" })));
      this.#cut = (action) => {
        cancel();
        this.#cut = null;
        resolve(action);
      };
    });
  }

  #seen(input: Input): void {
    const action = this.#machine.tell(input);
    if (action.do !== "none") this.#cut?.(this.#announce(action));
  }

  async #refresh(): Promise<Action> {
    try {
      await this.feed.refresh();
    } catch (error) {
      this.#error = new FeedError(401, "unauthorized", `Could not get a new token: ${String(error)}`);
      return { do: "stop" };
    }
    return this.#tell({ input: "refreshed" });
  }

  // --- polling

  async #poll(): Promise<Action> {
    const cursor = this.#trail.cursor;
    const { filters, limit } = this.options;
    const attempt = this.#attempt(this.#patience.answer);
    try {
      const page = await this.feed.page({
        after: cursor,
        ...(filters && { filters }),
        ...(limit !== undefined && { limit }),
        etag: this.#etag.cursor === cursor ? this.#etag.tag : null,
        signal: attempt.signal,
      });
      attempt.alarm.clear();
      this.#error = null;
      this.options.onHeard?.(null);
      if (page === null) return this.#tell({ input: "unchanged" });
      const delivered = await this.#take(page);
      // A tag belongs to one request: after a move the next request is another.
      this.#etag = { cursor, tag: this.#trail.cursor === cursor ? page.etag : null };
      return this.#tell({ input: "page", events: delivered, more: page.more });
    } catch (error) {
      return this.#pollTrouble(error, attempt.signal);
    } finally {
      attempt.alarm.clear();
    }
  }

  async #take(page: Page<Item>): Promise<number> {
    for (const range of page.neverGiven) this.#trail.neverGiven(range);
    const delivered = await this.#deliver(page.events);
    // Nothing there yet: from now on every event is wanted, and not only the newest page.
    const next = page.next ?? (this.#trail.cursor === null && page.events.length === 0 ? this.feed.beginning : null);
    if (next !== null && next !== this.#trail.cursor) this.#place(next);
    return delivered;
  }

  #pollTrouble(error: unknown, signal: AbortSignal): Action {
    const refused = this.#trouble(error, signal);
    if (refused === null) return this.#tell({ input: "poll_failed" });
    return this.#tell({ input: "poll_refused", status: refused.status, retryAfter: refused.retryAfter });
  }

  // --- streaming

  async #stream(): Promise<Action> {
    const attempt = this.#attempt(this.#patience.firstBytes);
    try {
      const { body, silence } = await this.feed.open(this.#trail.cursor, this.options.filters ?? {}, attempt.signal);
      return await this.#readStream(body, silence ?? this.#patience.silence, attempt);
    } catch (error) {
      const refused = this.#trouble(error, attempt.signal);
      if (refused === null) return this.#tell({ input: "ended" });
      return this.#tell({ input: "stream_refused", status: refused.status, retryAfter: refused.retryAfter });
    } finally {
      attempt.alarm.clear();
      attempt.abort();
    }
  }

  async #readStream(body: ReadableStream<Uint8Array>, silence: number, attempt: Attempt): Promise<Action> {
    const { alarm, signal } = attempt;
    const decoder = new SseDecoder();
    const reading: Reading = { opened: false, retry: null };
    const reader = body.getReader();
    for (;;) {
      const { done, value } = await nextPiece(reader, signal);
      if (this.#end.signal.aborted) return { do: "none" };
      if (done) return this.#tell({ input: "ended" });
      // Nothing is read while events are delivered, so silence means nothing then.
      alarm.clear();
      if (!reading.opened) {
        reading.opened = true;
        this.#error = null;
        this.#tell({ input: "opened" });
      }
      this.options.onHeard?.(silence);
      const ending = await this.#heard(decoder.push(value), reading);
      if (ending) return ending;
      alarm.set(silence);
    }
  }

  /** Handle the signals of one chunk; consecutive events are delivered together. Returns an action at the stream's end. */
  async #heard(signals: readonly SseSignal[], reading: Reading): Promise<Action | null> {
    let events: Read<Item>[] = [];
    const handOver = async (): Promise<void> => {
      const ready = events;
      events = [];
      if (ready.length > 0) {
        await this.#deliver(ready);
        this.#tell({ input: "news" });
      }
    };
    for (const signal of signals) {
      if (signal.kind === "event" && this.#carriesItem(signal.name)) {
        events.push(this.#eventOf(signal.data, signal.id));
        continue;
      }
      await handOver();
      const ending = this.#sideSignal(signal, reading);
      if (ending) return ending;
    }
    await handOver();
    return null;
  }

  #sideSignal(signal: SseSignal, reading: Reading): Action | null {
    if (signal.kind === "retry") reading.retry = signal.milliseconds / 1000;
    if (signal.kind === "too_large") return this.#tell({ input: "ended" });
    if (signal.kind === "place") {
      this.#place(signal.id);
      this.#tell({ input: "news" });
    }
    if (signal.kind === "event" && signal.name === "bye") return this.#tell({ input: "bye", retry: reading.retry });
    if (signal.kind === "event" && signal.name === "reset") {
      this.#reset(resetDetails(signal.data));
      this.#tell({ input: "reset" });
    }
    return null;
  }

  #carriesItem(name: string): boolean {
    return this.feed.event === undefined ? !RESERVED.has(name) : name === this.feed.event;
  }

  #eventOf(data: string, id: string): Read<Item> {
    const read = readEvent<Item>(this.feed.kind, parsed(data, "an event is not JSON"));
    return { ...read, cursor: id === "" ? read.cursor : id };
  }

  // --- shared by polling and streaming

  /** A request that is aborted when it takes too long, or when following ends. */
  #attempt(seconds: number): Attempt {
    const broken = new AbortController();
    const alarm = new Alarm(this.#clock, () => broken.abort());
    alarm.set(seconds);
    this.#breakOff = () => broken.abort();
    return { alarm, abort: () => broken.abort(), signal: AbortSignal.any([this.#end.signal, broken.signal]) };
  }

  async #deliver(events: readonly Read<Item>[]): Promise<number> {
    let items: Item[] = [];
    let news = 0;
    for (const event of events) {
      const verdict = this.#trail.arrived(event);
      if (verdict.gap) this.options.onGap?.({ kind: "missing", ...verdict.gap });
      if (!verdict.deliver) continue;
      news += 1;
      if (event.withheld === null) {
        items.push(event.item);
        continue;
      }
      // Deliver the events before it first.
      const before = items;
      items = [];
      if (!(await this.#handOver(before))) return 0;
      this.options.onGap?.(withheldGap(event, event.withheld));
    }
    if (!(await this.#handOver(items))) return 0;
    this.#reached = this.#trail.cursor;
    return news;
  }

  /** False when following has ended. */
  async #handOver(items: readonly Item[]): Promise<boolean> {
    if (this.#end.signal.aborted) return false;
    if (items.length > 0) await this.options.onItems(items);
    return true;
  }

  #place(cursor: string): void {
    this.#trail.place(cursor);
    this.#reached = this.#trail.cursor;
  }

  /** The refusal, or null without a readable answer. Also replaces a cursor that is gone. */
  #trouble(error: unknown, signal: AbortSignal): FeedError | null {
    if (!(error instanceof FeedError)) {
      // An alarm or the end aborts a request with a DOMException. Everything else comes from a callback and is passed
      // on: full storage throws a DOMException, too.
      if (!(error instanceof DOMException && signal.aborted)) throw error;
      this.#error = new FeedError(0, "unreachable", "The server did not answer in time.");
      return null;
    }
    this.#error = error;
    if (error.status === 410) this.#reset(error.details);
    return error.status === 0 ? null : error;
  }

  #reset(details: Readonly<Record<string, unknown>>): void {
    const restart = typeof details["restart"] === "string" ? details["restart"] : null;
    const reason = typeof details["reason"] === "string" ? details["reason"] : "unknown";
    this.#trail.reset(restart);
    this.#reached = restart;
    this.options.onGap?.({ kind: "reset", reason, restart });
  }
}

interface Reading {
  opened: boolean;
  /** Seconds; the last `retry` of the server. */
  retry: number | null;
}

interface Attempt {
  readonly signal: AbortSignal;
  readonly alarm: Alarm;
  readonly abort: () => void;
}

/** Turn a broken connection into a FeedError. */
async function nextPiece(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  signal: AbortSignal,
): Promise<ReadableStreamReadResult<Uint8Array>> {
  try {
    return await reader.read();
  } catch (error) {
    throw error instanceof DOMException && signal.aborted ? error : unreachable(error);
  }
}
