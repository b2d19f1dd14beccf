/** A user's events: first the newest page, then each new event by stream or polling. */

import { Feed, FeedError, follow, type FollowState } from "@aftercommit/client";

import { type TokenSource } from "./api.js";
import { type TaskEvent, type WithheldEvent } from "./model.js";

/** The cursor after the last event. Without a cursor the feed begins with the oldest event. */
const END = "end";
const AT_ONCE = 40;
const RETRY_FIRST = 2;
const RETRY_LONGEST = 60;

export interface LiveHooks {
  /** Earlier events, oldest first. `more`: there are older ones. */
  older(events: readonly (TaskEvent | WithheldEvent)[], more: boolean): void;
  came(events: readonly TaskEvent[]): void;
  /** A new event that the server cannot show. */
  withheld(event: WithheldEvent): void;
  state(state: FollowState): void;
  /** The server sent something. `within`: seconds until the next sign of life is due. */
  heard(within: number | null): void;
  /** Events may be missing. */
  gap(): void;
  refused(error: FeedError): void;
}

export class Live {
  readonly #feed: Feed<TaskEvent>;
  readonly #hooks: LiveHooks;
  #oldest: string | null = null;

  constructor(address: URL, token: TokenSource, hooks: LiveHooks) {
    this.#feed = new Feed<TaskEvent>(address, {
      body: "array",
      names: { cursor: "after_id", limit: "limit", before: "before_id", fromTime: "from_time" },
      token,
    });
    this.#hooks = hooks;
  }

  async start(): Promise<void> {
    const newest = await this.#newest();
    if (newest === null) return;
    follow(this.#feed, {
      after: newest,
      onItems: (events) => this.#hooks.came(events.filter(isWhole)),
      onState: (state) => this.#hooks.state(state),
      onGap: (gap) => {
        if (gap.kind === "withheld") this.#hooks.withheld({ event_id: Number(gap.id), withheld: gap.reason });
        this.#hooks.gap();
      },
      onHeard: (within) => this.#hooks.heard(within),
      onRefused: (error) => this.#hooks.refused(error),
    });
  }

  async older(): Promise<void> {
    if (this.#oldest !== null) await this.#page(this.#oldest);
  }

  /** The newest cursor; null when reading is refused. Retries until the server answers. */
  async #newest(): Promise<string | null> {
    let wait = RETRY_FIRST;
    for (;;) {
      try {
        return (await this.#page(END)) ?? "0";
      } catch (error) {
        if (!(error instanceof FeedError)) throw error;
        if (error.status >= 400 && error.status < 500 && error.status !== 429) {
          this.#hooks.refused(error);
          return null;
        }
        const pause = Math.max(wait, error.retryAfter ?? 0);
        this.#hooks.state({ name: "waiting", wait: pause, error });
        await new Promise((resolve) => setTimeout(resolve, pause * 1000));
        wait = Math.min(wait * 2, RETRY_LONGEST);
      }
    }
  }

  /** Load the page before a cursor. Returns the cursor of its last event. */
  async #page(before: string): Promise<string | null> {
    const page = await this.#feed.page({ before, limit: AT_ONCE });
    const events = page?.events ?? [];
    // A full newest page has no `previous` cursor.
    const first = before === END && events.length === AT_ONCE ? events[0]?.cursor : null;
    this.#oldest = page?.previous ?? first ?? null;
    const shown = events.map(({ id, item, withheld }) =>
      withheld === null && isWhole(item) ? item : { event_id: Number(id), withheld: withheld ?? "incomplete" },
    );
    this.#hooks.older(shown, this.#oldest !== null);
    return events.at(-1)?.cursor ?? null;
  }
}

/** Whether an event has every field that the page shows. */
function isWhole(event: Partial<TaskEvent>): boolean {
  return typeof event.task_id === "number" && typeof event.event_type === "string" && event.payload !== undefined;
}
