/** What the shared cases leave open, and a browser needs. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Machine } from "../src/machine.js";

function polling(): Machine {
  const machine = new Machine({ now: () => 0, random: () => 0, canRefresh: false, streams: false });
  machine.tell({ input: "start" });
  return machine;
}

test("a tab that is looked at polls at once, but never before the time that the server named", () => {
  const idle = polling();
  idle.tell({ input: "hidden" });
  idle.tell({ input: "unchanged" });
  assert.deepEqual(idle.tell({ input: "visible" }), { do: "poll" });

  const limited = polling();
  limited.tell({ input: "hidden" });
  limited.tell({ input: "poll_refused", status: 429, retryAfter: 40 });
  assert.deepEqual(limited.tell({ input: "visible" }), { do: "none" });
});
