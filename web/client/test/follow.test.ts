import assert from "node:assert/strict";
import { test } from "node:test";

import { Feed, FeedError, follow, items, type FollowState, type Gap } from "../src/index.js";
import { after, block, cursor, FAST, isStream, log, openStream, page, QUICK, refuse, serve, type Log } from "./scripted.js";

/** Collects until so many have come. */
function collector(count: number): { seqs: number[]; onItems: (logs: readonly Log[]) => void; full: Promise<void> } {
  const seqs: number[] = [];
  let enough = (): void => {};
  const full = new Promise<void>((resolve) => (enough = resolve));
  const onItems = (logs: readonly Log[]): void => {
    for (const { seq } of logs) seqs.push(seq);
    if (seqs.length >= count) enough();
  };
  return { seqs, onItems, full };
}

const upTo = (count: number): number[] => Array.from({ length: count }, (_, index) => index + 1);

test("every event comes once and in order, though the connection is cut within each", async (t) => {
  const { address } = await serve(t, (request, response) => {
    if (!isStream(request)) return refuse(response, 500);
    openStream(response);
    const next = after(request) + 1;
    // A whole event, and half of the one that follows.
    response.write(block(next) + block(next + 1).slice(0, 30), () => response.destroy());
  });
  const { seqs, onItems, full } = collector(12);
  const gaps: Gap[] = [];
  const follower = follow(new Feed<Log>(address), {
    after: cursor(0),
    sequence: true,
    onItems,
    onGap: (gap) => gaps.push(gap),
    ...QUICK,
  });
  await full;
  follower.stop();
  await follower.done;
  assert.deepEqual(seqs.slice(0, 12), upTo(12));
  assert.deepEqual(gaps, []);
});

test("three failures of the stream lead to polling, and a stream that works again ends it", async (t) => {
  let streams = 0;
  let polls = 0;
  const { address } = await serve(t, (request, response) => {
    if (!isStream(request)) {
      polls += 1;
      return page(response, [log(polls)], cursor(polls));
    }
    streams += 1;
    if (streams <= 4) return refuse(response, 503);
    openStream(response);
    for (let seq = after(request) + 1; seq <= after(request) + 5; seq += 1) response.write(block(seq));
    return undefined;
  });
  const states: string[] = [];
  const { seqs, onItems } = collector(0);
  let streaming = (): void => {};
  const back = new Promise<void>((resolve) => (streaming = resolve));
  const follower = follow(new Feed<Log>(address), {
    after: cursor(0),
    sequence: true,
    onItems: (logs) => {
      onItems(logs);
      if (follower.state === "streaming") streaming();
    },
    onState: ({ name }) => {
      if (states.at(-1) !== name) states.push(name);
    },
    ...QUICK,
  });
  await back;
  follower.stop();
  await follower.done;
  assert.deepEqual(states, ["connecting", "waiting", "connecting", "waiting", "connecting", "polling", "streaming"]);
  assert.deepEqual(seqs, upTo(seqs.length));
  assert.ok(polls > 0 && streams === 5);
});

test("a poll that brought nothing is asked again with its tag", async (t) => {
  const tags: (string | undefined)[] = [];
  let enough = (): void => {};
  const full = new Promise<void>((resolve) => (enough = resolve));
  const { address } = await serve(t, (request, response) => {
    if (isStream(request)) return refuse(response, 404);
    tags.push(request.headers["if-none-match"]);
    if (tags.length === 4) enough();
    if (request.headers["if-none-match"] === 'W/"2"') return void response.writeHead(304).end();
    return request.url?.includes("afterCursor")
      ? page(response, [], null, 'W/"2"')
      : page(response, [log(1)], cursor(1), 'W/"1"');
  });
  const follower = follow(new Feed<Log>(address), { onItems: () => {}, ...QUICK });
  await full;
  follower.stop();
  assert.deepEqual(tags.slice(0, 4), [undefined, undefined, 'W/"2"', 'W/"2"']);
});

test("a feed that is empty at first is read from its beginning", async (t) => {
  const asked: (string | null)[] = [];
  const { address } = await serve(t, (request, response) => {
    if (isStream(request)) return refuse(response, 404);
    const place = new URL(request.url ?? "", "http://feed").searchParams.get("afterCursor");
    asked.push(place);
    if (asked.length <= 2) return page(response, [], null);
    // By now there are more events than a page takes: without a cursor the page would have the newest alone.
    const first = place === null ? 16 : Number(place.split("#")[1]) + 1;
    return page(response, upTo(25).slice(first - 1, first + 9).map((seq) => log(seq)), cursor(Math.min(25, first + 9)));
  });
  const { seqs, onItems, full } = collector(25);
  const follower = follow(new Feed<Log>(address), { onItems, ...QUICK });
  await full;
  follower.stop();
  await follower.done;
  assert.deepEqual(seqs, upTo(25));
  assert.deepEqual(asked.slice(0, 2), [null, "1970-01-01T00:00:00.000Z#000"]);
});

test("a refused token is renewed once, and travels in no address", async (t) => {
  const { address, requests } = await serve(t, (request, response) => {
    if (request.headers.authorization !== "Bearer second") return refuse(response, 401, { error: "unauthorized" });
    openStream(response);
    response.write(block(1));
    return undefined;
  });
  const { onItems, full, seqs } = collector(1);
  const token = (refused: boolean): string => (refused ? "second" : "first");
  const follower = follow(new Feed<Log>(address, { token }), { onItems, ...QUICK });
  await full;
  follower.stop();
  assert.deepEqual(seqs, [1]);
  assert.equal(requests.length, 2);
  assert.ok(requests.every((request) => !request.url?.includes("first") && !request.url?.includes("second")));
});

test("a refusal that waiting does not heal ends it and is told", async (t) => {
  const { address } = await serve(t, (_, response) => refuse(response, 403, { error: "forbidden", message: "No." }));
  const refused: FeedError[] = [];
  const states: FollowState[] = [];
  const follower = follow(new Feed<Log>(address), {
    onItems: () => {},
    onRefused: (error) => refused.push(error),
    onState: (state) => states.push(state),
  });
  await follower.done;
  assert.equal(refused[0]?.code, "forbidden");
  assert.equal(states.at(-1)?.name, "stopped");
  assert.equal(follower.state, "stopped");
});

test("a redirection is not followed with the token", async (t) => {
  const { address, requests } = await serve(
    t,
    (_, response) => void response.writeHead(302, { location: "/elsewhere" }).end(),
  );
  const refused: number[] = [];
  const feed = new Feed<Log>(address, { token: "secret" });
  await follow(feed, { onItems: () => {}, onRefused: ({ status }) => refused.push(status) }).done;
  assert.deepEqual(refused, [302]);
  assert.equal(requests.length, 1);
});

test("a stream that falls silent is opened again", async (t) => {
  const { address, requests } = await serve(t, (request, response) => {
    openStream(response);
    if (after(request) < 3) response.write(block(after(request) + 1));
  });
  const { seqs, onItems, full } = collector(3);
  const follower = follow(new Feed<Log>(address), { after: cursor(0), onItems, clock: FAST, patience: { ...QUICK.patience, silence: 5 } });
  await full;
  follower.stop();
  assert.deepEqual(seqs, [1, 2, 3]);
  assert.ok(requests.length >= 3);
});

test("a server that never answers is given up after a while", async (t) => {
  let asked = 0;
  let enough = (): void => {};
  const full = new Promise<void>((resolve) => (enough = resolve));
  const { address } = await serve(t, () => {
    asked += 1;
    if (asked === 4) enough();
  });
  const errors: (string | null | undefined)[] = [];
  const follower = follow(new Feed<Log>(address), {
    onItems: () => {},
    onState: ({ error }) => errors.push(error?.code),
    clock: FAST,
  });
  await full;
  follower.stop();
  assert.ok(errors.includes("unreachable"));
});

test("numbers that jump and a lost place are reported", async (t) => {
  const { address } = await serve(t, (request, response) => {
    if (after(request) === 7) {
      return refuse(response, 410, { error: "gone", details: { reason: "retention", restart: cursor(40) } });
    }
    openStream(response);
    response.write(block(41) + block(44));
    return undefined;
  });
  const gaps: Gap[] = [];
  const { onItems, full } = collector(2);
  const onGap = (gap: Gap): void => void gaps.push(gap);
  const follower = follow(new Feed<Log>(address), { after: cursor(7), sequence: true, onItems, onGap, ...QUICK });
  await full;
  follower.stop();
  assert.deepEqual(gaps, [
    { kind: "reset", reason: "retention", restart: cursor(40) },
    { kind: "missing", expected: 42, got: 44 },
  ]);
});

test("a place without an event moves the cursor", async (t) => {
  const { address, requests } = await serve(t, (request, response) => {
    openStream(response);
    if (after(request) === 0) response.write(`id: ${cursor(90)}\n\n`, () => response.destroy());
    else response.write(block(91));
  });
  const { onItems, full } = collector(1);
  const follower = follow(new Feed<Log>(address), { onItems, ...QUICK });
  await full;
  follower.stop();
  assert.equal(requests[1]?.headers["last-event-id"], cursor(90));
});

test("a goodbye is followed by another stream, when the server wishes", async (t) => {
  const { address } = await serve(t, (request, response) => {
    openStream(response);
    response.end(`${block(after(request) + 1)}event: bye\nretry: 1500\ndata: {}\n\n`);
  });
  const waits: number[] = [];
  const { seqs, onItems, full } = collector(3);
  const follower = follow(new Feed<Log>(address), {
    onItems,
    onState: ({ wait }) => void (wait !== null && waits.push(wait)),
    ...QUICK,
    random: () => 0,
  });
  await full;
  follower.stop();
  assert.deepEqual(seqs, [1, 2, 3]);
  assert.deepEqual(waits.slice(0, 2), [1.5, 1.5]);
});

test("the cursor moves when the events are taken, and not before", async (t) => {
  const { address } = await serve(t, (_, response) => {
    openStream(response);
    response.write(block(1));
  });
  let taken = (): void => {};
  let arrived = (): void => {};
  const here = new Promise<void>((resolve) => (arrived = resolve));
  const follower = follow(new Feed<Log>(address), {
    after: cursor(0),
    onItems: () =>
      new Promise((resolve) => {
        taken = resolve;
        arrived();
      }),
  });
  await here;
  assert.equal(follower.cursor, cursor(0));
  taken();
  await new Promise(setImmediate);
  assert.equal(follower.cursor, cursor(1));
  follower.stop();
});

test("an error of the caller's own is not taken for trouble of the feed's", async (t) => {
  const { address } = await serve(t, (_, response) => {
    openStream(response);
    response.write(block(1));
  });
  const follower = follow(new Feed<Log>(address), {
    onItems: () => {
      throw new TypeError("mine");
    },
  });
  await assert.rejects(follower.done, /mine/);
});

for (const streams of [true, false]) {
  test(`an error of the caller's own counts also when it is a DOMException (${streams ? "stream" : "poll"})`, async (t) => {
    const { address } = await serve(t, (request, response) => {
      if (!isStream(request)) return page(response, [log(1)], cursor(1));
      openStream(response);
      response.write(block(1));
      return undefined;
    });
    const follower = follow(new Feed<Log>(address), {
      streams,
      onItems: () => {
        throw new DOMException("the storage is full", "QuotaExceededError");
      },
    });
    await assert.rejects(follower.done, /the storage is full/);
    assert.equal(follower.cursor, null);
  });
}

test("a loop over the events ends when it is left, and reads no further than it has to", async (t) => {
  let closed = (): void => {};
  const over = new Promise<void>((resolve) => (closed = resolve));
  const { address } = await serve(t, (_, response) => {
    openStream(response);
    response.write(block(1) + block(2) + block(3));
    response.on("close", closed);
  });
  const seqs: number[] = [];
  for await (const { seq } of items(new Feed<Log>(address))) {
    seqs.push(seq);
    if (seq === 2) break;
  }
  await over;
  assert.deepEqual(seqs, [1, 2]);
});

test("a loop over events that may not be read throws the refusal", async (t) => {
  const { address } = await serve(t, (_, response) => refuse(response, 403, { error: "forbidden", message: "No." }));
  await assert.rejects(
    items(new Feed<Log>(address)).next(),
    (error) => error instanceof FeedError && error.code === "forbidden",
  );
});

test("garbage on the stream is trouble of the stream, and polling goes on", async (t) => {
  const { address } = await serve(t, (request, response) => {
    if (!isStream(request)) return page(response, [log(1)], cursor(1));
    openStream(response);
    response.write("event: log\ndata: {not json\n\n");
    return undefined;
  });
  const { onItems, full, seqs } = collector(1);
  const follower = follow(new Feed<Log>(address), { onItems, ...QUICK });
  await full;
  follower.stop();
  assert.deepEqual(seqs, [1]);
});

test("an event that is withheld is not handed over, is reported in its place, and is news when it comes after all", async (t) => {
  const { address } = await serve(t, (_, response) => {
    openStream(response);
    response.write(
      `${block(1)}id: ${cursor(2)}\nevent: log\ndata: {"event_id": "e2", "withheld": "unreadable"}\n\n${block(3)}` +
        `event: hold\ndata: {"event_type": "x", "version": 2, "known": 1}\n\n` +
        `event: reset\nid: ${cursor(1)}\ndata: {"reason": "epoch", "restart": "${cursor(1)}"}\n\n${block(2)}`,
    );
  });
  const told: unknown[] = [];
  let enough = (): void => {};
  const full = new Promise<void>((resolve) => (enough = resolve));
  const onItems = (logs: readonly Log[]): void => {
    told.push(...logs.map(({ seq }) => seq));
    if (told.length === 5) enough();
  };
  const onGap = (gap: Gap): void => void told.push(gap);
  const follower = follow(new Feed<Log>(address), { after: cursor(0), sequence: true, onItems, onGap });
  await full;
  follower.stop();
  const withheld = { kind: "withheld", reason: "unreadable", id: "e2", number: 2, cursor: cursor(2) };
  const reset = { kind: "reset", reason: "epoch", restart: cursor(1) };
  assert.deepEqual(told, [1, withheld, 3, reset, 2]);
});
