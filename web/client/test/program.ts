/**
 * The client as a program, for tests against a real server: follows what the environment names, and writes one line of
 * JSON for everything that it is told, until it is ended or refused.
 */

import { Feed, follow } from "../src/index.js";
import { type Log } from "./scripted.js";

const say = (said: object): void => void process.stdout.write(`${JSON.stringify(said)}\n`);

const event = process.env["EVENT"] ?? "log";
const feed = new Feed<Log & { readonly text?: string }>(process.env["FEED"] ?? "", { token: process.env["TOKEN"] ?? "", event });
const filters = JSON.parse(process.env["FILTERS"] ?? "{}") as Record<string, string>;

const follower = follow(feed, {
  after: process.env["AFTER"] ?? null,
  filters,
  sequence: Object.keys(filters).length === 0,
  streams: process.env["STREAMS"] !== "no",
  onItems: (logs) => logs.forEach(({ seq, text }) => say(text === undefined ? { seq } : { seq, text })),
  onState: ({ name }) => say({ state: name }),
  onGap: (gap) => say({ gap }),
  onRefused: (error) => say({ refused: error.code, status: error.status }),
});
process.on("SIGTERM", () => follower.stop());
await follower.done;
