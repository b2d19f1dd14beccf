/** Options and callbacks of a follower. */

import { type FeedError } from "./answers.js";
import { type Clock } from "./clock.js";
import { type StateName } from "./machine.js";
import { type Network } from "./network.js";
import { type Filters } from "./requests.js";
import { type Gap } from "./trail.js";
import { type Visibility } from "./visibility.js";

export interface FollowState {
  readonly name: StateName;
  /** Seconds until the next attempt or poll; null when not waiting. */
  readonly wait: number | null;
  /** The last error, until a request succeeds. */
  readonly error: FeedError | null;
}

export interface FollowOptions<Item> {
  /** The cursor to start after; null: start with the newest events. */
  readonly after?: string | null;
  readonly filters?: Filters;
  /** Page size while polling. */
  readonly limit?: number;
  /** Whether the numbers have no gaps: true for a feed by stream without filters. Then gaps are reported. */
  readonly sequence?: boolean;
  /** false: only poll. */
  readonly streams?: boolean;
  /** Called with events in order; its promise is awaited. */
  readonly onItems: (items: readonly Item[]) => void | Promise<void>;
  readonly onState?: (state: FollowState) => void;
  /** The server sent an event, a heartbeat or an answer. `within`: seconds of silence after which the stream counts as
   * lost; null while polling. */
  readonly onHeard?: (within: number | null) => void;
  readonly onGap?: (gap: Gap) => void;
  /** Following has ended: the server refused, and a retry would not help. */
  readonly onRefused?: (error: FeedError) => void;
  /** Whether the page is visible; by default the page's own state, always true in Node. */
  readonly visibility?: Visibility;
  /** The network state; by default the browser's. */
  readonly network?: Network;
  /** Timeouts in seconds: for a stream's first bytes, for silence if the server announces no heartbeat interval, and for
   * a poll's answer. */
  readonly patience?: Partial<Patience>;
  readonly clock?: Clock;
  readonly random?: () => number;
}

export interface Patience {
  readonly firstBytes: number;
  readonly silence: number;
  readonly answer: number;
}
