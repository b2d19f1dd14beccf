/** A feed as an async iterator: `for await (const log of items(feed)) …`. Leaving the loop stops following. */

import { type FeedError } from "./answers.js";
import { type Feed } from "./feed.js";
import { follow } from "./follow.js";
import { type FollowOptions } from "./options.js";

export type ItemsOptions<Item> = Omit<FollowOptions<Item>, "onItems" | "onRefused">;

/** Reads nothing ahead: the next events are requested when the last ones are used up. Throws if the server refuses. */
export async function* items<Item>(feed: Feed<Item>, options: ItemsOptions<Item> = {}): AsyncGenerator<Item, void> {
  let piece: readonly Item[] = [];
  let taken = (): void => {};
  let arrived = (): void => {};
  let refused: FeedError | null = null;
  const follower = follow(feed, {
    ...options,
    onItems: (next) =>
      new Promise((resolve) => {
        piece = next;
        taken = resolve;
        arrived();
      }),
    onRefused: (error) => {
      refused = error;
    },
  });
  try {
    for (;;) {
      const here = new Promise<"here">((resolve) => (arrived = () => resolve("here")));
      if (piece.length === 0 && (await Promise.race([here, follower.done])) !== "here") break;
      yield* piece;
      piece = [];
      taken();
    }
    if (refused !== null) throw refused as FeedError;
  } finally {
    follower.stop();
    taken();
  }
}
