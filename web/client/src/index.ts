/**
 * Follow an aftercommit feed from a browser or from Node.
 *
 * `Feed` requests pages. `follow` keeps reading: server-sent events first, polling when they fail, each event once and
 * in order.
 */

export { FeedError, type BodyKind, type Page, type Read } from "./answers.js";
export { type Clock } from "./clock.js";
export { Feed, type FeedOptions, type PageRequest, type TokenSource } from "./feed.js";
export { follow, Follower } from "./follow.js";
export { type FollowOptions, type FollowState } from "./options.js";
export { items, type ItemsOptions } from "./items.js";
export { type StateName } from "./machine.js";
export { type Network } from "./network.js";
export { type Filters, type Names } from "./requests.js";
export { type Gap } from "./trail.js";
export { type Visibility } from "./visibility.js";
