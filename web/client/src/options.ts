/** What a follower is told at its start, and what it tells. */

import { type FeedError } from "./answers.js";
import { type Clock } from "./clock.js";
import { type StateName } from "./machine.js";
import { type Network } from "./network.js";
import { type Filters } from "./requests.js";
import { type Gap } from "./trail.js";
import { type Visibility } from "./visibility.js";

export interface FollowState {
  readonly name: StateName;
  /** Seconds until the next attempt or poll; null when nothing is waited for. */
  readonly wait: number | null;
  /** What went wrong last, until something works again. */
  readonly error: FeedError | null;
}

export interface FollowOptions<Item> {
  /** The cursor to begin after; null: with the newest events. */
  readonly after?: string | null;
  readonly filters?: Filters;
  /** Page size while polling. */
  readonly limit?: number;
  /** Numbers have no gaps in what is followed: true for a strand by stream that is read without filters. */
  readonly sequence?: boolean;
  /** false: only poll. */
  readonly streams?: boolean;
  /** Called with events in order; what it returns is waited for. */
  readonly onItems: (items: readonly Item[]) => void | Promise<void>;
  readonly onState?: (state: FollowState) => void;
  /** The server was heard: an event, a heartbeat, an answer to a poll. `within`: seconds after which a stream counts
   * as lost when nothing more comes; null while polling. */
  readonly onHeard?: (within: number | null) => void;
  readonly onGap?: (gap: Gap) => void;
  /** It ended: the server said no in a way that waiting does not heal. */
  readonly onRefused?: (error: FeedError) => void;
  /** Whether somebody is looking; by default the page's own, and always true in Node. */
  readonly visibility?: Visibility;
  /** What the browser says of its network; by default the page's own. */
  readonly network?: Network;
  /** Seconds for a stream's first bytes, for silence on it where its server does not say how often it beats, and for a
   * poll's answer. */
  readonly patience?: Partial<Patience>;
  readonly clock?: Clock;
  readonly random?: () => number;
}

export interface Patience {
  readonly firstBytes: number;
  readonly silence: number;
  readonly answer: number;
}
