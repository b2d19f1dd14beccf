/** The cases that every client runs. They are read from `conformance/*.yaml`, turned to JSON by `tools/web.py`. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";

import { FeedError, readAnswer, silenceOf } from "../src/answers.js";
import { Machine, type Input } from "../src/machine.js";
import { pageAddress, streamAddress } from "../src/requests.js";
import { SseDecoder, type SseSignal } from "../src/sse.js";
import { Trail, type Range } from "../src/trail.js";

interface File {
  readonly about: string;
  readonly cases: readonly Case[];
}

type Case = Readonly<Record<string, unknown>> & { readonly name: string };

const files = JSON.parse(readFileSync(process.env["CONFORMANCE"] ?? "conformance.json", "utf-8")) as Record<
  string,
  File
>;

function cases(file: string, run: (given: Case) => void): void {
  describe(file, () => {
    const found = files[file]?.cases ?? [];
    test(`${file} has cases`, () => assert.ok(found.length > 0));
    for (const given of found) test(given.name, () => run(given));
  });
}

function get<Value>(given: Readonly<Record<string, unknown>>, key: string, otherwise: Value): Value {
  return key in given ? (given[key] as Value) : otherwise;
}

// --- sse_decoder

const bytesOf = (given: Case): Uint8Array =>
  typeof given["input_hex"] === "string"
    ? new Uint8Array(Buffer.from(given["input_hex"].replace(/\s/g, ""), "hex"))
    : new TextEncoder().encode(given["input"] as string);

function asWritten(signal: SseSignal): object {
  switch (signal.kind) {
    case "event":
      return { event: signal.name, data: signal.data, id: signal.id };
    case "place":
      return { place: signal.id };
    case "retry":
      return { retry: signal.milliseconds };
    case "too_large":
      return { too_large: true };
  }
}

function decoded(pieces: readonly Uint8Array[], most: number | undefined): object[] {
  const decoder = new SseDecoder(most);
  return pieces.flatMap((piece) => decoder.push(piece)).map(asWritten);
}

cases("sse_decoder", (given) => {
  const bytes = bytesOf(given);
  const most = get<number | undefined>(given, "most", undefined);
  const expected = given["expect"];
  assert.deepEqual(decoded([bytes], most), expected, "whole");
  assert.deepEqual(
    decoded(
      [...bytes].map((byte) => Uint8Array.of(byte)),
      most,
    ),
    expected,
    "byte by byte",
  );
  for (let cut = 1; cut < bytes.length; cut += 1) {
    assert.deepEqual(decoded([bytes.subarray(0, cut), bytes.subarray(cut)], most), expected, `cut at ${cut}`);
  }
});

// --- machine

interface Step {
  readonly after?: number;
  readonly input: string;
  readonly do: string;
  readonly seconds?: number;
  readonly state: string;
  readonly retry_after?: number;
}

cases("machine", (given) => {
  let clock = 0;
  const machine = new Machine({
    now: () => clock,
    random: () => get(given, "random", 0),
    canRefresh: get(given, "can_refresh", true),
    streams: get(given, "streams", true),
  });
  (given["steps"] as Step[]).forEach((step, index) => {
    clock += step.after ?? 0;
    const action = machine.tell({ ...step, retryAfter: step.retry_after ?? null } as unknown as Input);
    const where = `step ${index + 1} (${step.input})`;
    assert.equal(action.do, step.do, where);
    assert.equal(machine.state, step.state, where);
    if (step.seconds !== undefined) {
      assert.ok(
        action.do === "wait" && Math.abs(action.seconds - step.seconds) < 0.001,
        `${where}: ${JSON.stringify(action)}`,
      );
    }
  });
});

// --- trail

interface Arrived {
  readonly event_id: string;
  readonly number: number | null;
  readonly cursor: string | null;
  readonly expect: "deliver" | "repeat" | "withheld";
  readonly withheld?: string;
  readonly gap?: { readonly expected: number; readonly got: number };
}

cases("trail", (given) => {
  const trail = new Trail(get(given, "start", null), get(given, "sequence", false), get(given, "window", 10_000));
  for (const arrival of given["arrivals"] as readonly (
    | Arrived
    | { place: string }
    | { reset: string | null }
    | { never_given: Range }
  )[]) {
    if ("place" in arrival) trail.place(arrival.place);
    else if ("reset" in arrival) trail.reset(arrival.reset);
    else if ("never_given" in arrival) trail.neverGiven(arrival.never_given);
    else {
      const { event_id: id, number, cursor, withheld = null } = arrival;
      const verdict = trail.arrived({ id, number: number ?? undefined, cursor, withheld });
      const news = withheld === null ? "deliver" : "withheld";
      assert.equal(verdict.deliver ? news : "repeat", arrival.expect, arrival.event_id);
      assert.deepEqual(verdict.gap, arrival.gap ?? null, arrival.event_id);
    }
  }
  assert.equal(trail.cursor, given["cursor"]);
});

// --- requests

cases("requests", (given) => {
  const { from_time: fromTime = "fromTime", ...others } = get<Record<string, string>>(given, "names", {});
  const names = { cursor: "afterCursor", limit: "limit", ...others, fromTime };
  const question = {
    cursor: get<string | null>(given, "cursor", null),
    before: get<string | null>(given, "before", null),
    fromTime: get<string | null>(given, "from_time", null),
    limit: get<number | null>(given, "limit", null),
    filters: get<Record<string, string>>(given, "filters", {}),
  };
  const address = new URL(given["url"] as string);
  const stream = typeof given["stream"] === "string" ? new URL(given["stream"]) : null;
  assert.equal(pageAddress(address, names, question).href, given["page"] ?? given["poll"]);
  if ("page" in given) return;
  assert.equal(streamAddress(address, stream, names, question).href, given["stream_to"]);
  assert.equal(question.cursor, given["last_event_id"]);
});

// --- answers

function answerTo(given: Case): object {
  const text = "body" in given ? JSON.stringify(given["body"]) : get(given, "text", "");
  const headers = new Headers(get<Record<string, string>>(given, "headers", {}));
  try {
    const page = readAnswer(
      get(given, "body_kind", "paged"),
      { after: get(given, "after", null), back: "before" in given },
      given["status"] as number,
      headers,
      text,
    );
    if (page === null) return { unchanged: true };
    const events = page.events.map(({ id, cursor, withheld }) => ({
      event_id: id,
      cursor,
      ...(withheld !== null && { withheld }),
    }));
    return { page: { events, next: page.next, more: page.more, previous: page.previous } };
  } catch (error) {
    assert.ok(error instanceof FeedError);
    if (error.status === 0) return { unreadable: true };
    const { status, code, message, retryAfter, restart } = error;
    return { refusal: { status, code, message, retry_after: retryAfter, restart } };
  }
}

cases("silence", (given) => assert.equal(silenceOf(given["interval"] as string | null), given["silence"]));

cases("answers", (given) => {
  const answer = answerTo(given) as Record<string, Record<string, unknown>>;
  if ("refusal" in given) {
    for (const [key, value] of Object.entries(given["refusal"] as object))
      assert.deepEqual(answer["refusal"]?.[key], value, key);
    return;
  }
  if ("page" in given) {
    assert.deepEqual(answer, { page: { previous: null, ...(given["page"] as object) } });
    return;
  }
  const expected = ["unchanged", "unreadable"].filter((key) => key in given).map((key) => [key, given[key]]);
  assert.deepEqual(answer, Object.fromEntries(expected));
});
