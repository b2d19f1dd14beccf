import assert from "node:assert/strict";
import { test } from "node:test";

import { Feed, follow } from "../src/index.js";
import { manual, openStream, serve, type Log } from "./scripted.js";

/** Whatever is to come of what has happened, without a wait, has come of it. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

test("a server that announces its heartbeats is lost after two of them and a second, and one that beats is not", async (t) => {
  let beat = (): void => {};
  const { address } = await serve(t, (_, response) => {
    response.writeHead(200, { "content-type": "text/event-stream", "x-heartbeat-interval": "5" });
    response.write(": connected\n\n");
    beat = () => void response.write(": hb\n\n");
  });
  const { clock, pass } = manual();
  const states: string[] = [];
  let heard = (): void => {};
  const next = async (): Promise<void> => {
    await new Promise<void>((resolve) => (heard = resolve));
    await settled();
  };
  let lose = (): void => {};
  const lost = new Promise<void>((resolve) => (lose = resolve));
  const connected = next();
  const follower = follow(new Feed<Log>(address), {
    onItems: () => {},
    onHeard: (within) => {
      assert.equal(within, 11);
      heard();
    },
    onState: ({ name }) => {
      states.push(name);
      if (name === "waiting") lose();
    },
    clock,
  });
  await connected;
  for (let beats = 0; beats < 8; beats += 1) {
    // Late, and yet in time.
    pass(10.9);
    const received = next();
    beat();
    await received;
  }
  assert.deepEqual(states, ["connecting", "streaming"]);
  pass(10.9);
  assert.deepEqual(states, ["connecting", "streaming"]);
  pass(0.2);
  await lost;
  assert.deepEqual(states, ["connecting", "streaming", "waiting"]);
  follower.stop();
  await follower.done;
});

test("a browser that goes offline breaks the stream off at once, and tries again at once when it is back", async (t) => {
  let streams = 0;
  const { address } = await serve(t, (_, response) => {
    streams += 1;
    openStream(response);
  });
  let tell = (_: boolean): void => {};
  const states: string[] = [];
  let wake = (): void => {};
  const until = async (name: string): Promise<void> => {
    while (states.at(-1) !== name) await new Promise<void>((resolve) => (wake = resolve));
  };
  const follower = follow(new Feed<Log>(address), {
    onItems: () => {},
    onState: ({ name }) => {
      states.push(name);
      wake();
    },
    network: { watch: (changed) => ((tell = changed), () => {}) },
    // No wait ends by itself.
    clock: { now: () => 0, after: () => () => {} },
  });
  await until("streaming");
  tell(false);
  await until("waiting");
  tell(true);
  await until("streaming");
  follower.stop();
  assert.deepEqual(states, ["connecting", "streaming", "waiting", "connecting", "streaming"]);
  assert.equal(streams, 2);
});
