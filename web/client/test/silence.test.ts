import assert from "node:assert/strict";
import { test } from "node:test";

import { Feed, follow } from "../src/index.js";
import { FAST, openStream, serve, type Log } from "./scripted.js";

test("a server that announces its heartbeats is lost after two of them and a second, and one that beats is not", async (t) => {
  let streams = 0;
  const { address } = await serve(t, (_, response) => {
    streams += 1;
    response.writeHead(200, { "content-type": "text/event-stream", "x-heartbeat-interval": "5" });
    response.write(": connected\n\n");
    if (streams > 1) return undefined;
    // Eight beats, and then nothing: as a server does that was stopped.
    let beats = 0;
    const beat = setInterval(() => (++beats <= 8 ? response.write(": hb\n\n") : clearInterval(beat)), 50);
    return undefined;
  });
  const heard: number[] = [];
  const began = FAST.now();
  let lost = (_: number): void => {};
  const end = new Promise<number>((resolve) => (lost = resolve));
  const follower = follow(new Feed<Log>(address), {
    onItems: () => {},
    onHeard: (within) => {
      if (streams === 1) heard.push(FAST.now());
      assert.equal(within, 11);
    },
    onState: ({ name }) => void (name === "waiting" && lost(FAST.now())),
    clock: FAST,
  });
  const silent = (await end) - (heard.at(-1) ?? 0);
  follower.stop();
  await follower.done;
  assert.ok(heard.length === 9 && (heard.at(-1) ?? 0) - began >= 35, `${heard.length} beats`);
  assert.ok(silent >= 10.9, `lost after ${silent} s`);
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
