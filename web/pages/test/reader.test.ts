import assert from "node:assert/strict";
import { test } from "node:test";

import { Lines } from "../logs/lines.js";
import { NO_FILTERS } from "../logs/place.js";
import { Reader } from "../logs/reader.js";
import { log, Strand } from "./strand.js";

interface Desk {
  readonly strand: Strand;
  readonly reader: Reader;
  readonly lines: Lines;
  readonly notices: string[];
  /** Resolves when so many live lines were seen since the beginning. */
  live(count: number): Promise<void>;
  seqs(): number[];
}

function desk(count: number, most = 100_000): Desk {
  const strand = new Strand(count);
  const lines = new Lines(most);
  const notices: string[] = [];
  let seen = 0;
  let wanted: { count: number; resolve: () => void } | undefined;
  const reader = new Reader(strand.feed, lines, {
    changed: () => {},
    stood: () => {},
    state: () => {},
    heard: () => {},
    unreachable: () => {},
    notice: (text) => notices.push(text),
    refused: (error) => notices.push(error.message),
    live: (came) => {
      seen += came;
      if (wanted && seen >= wanted.count) wanted.resolve();
    },
  });
  return {
    strand,
    reader,
    lines,
    notices,
    live: (more) => new Promise((resolve) => (seen >= more ? resolve() : (wanted = { count: more, resolve }))),
    seqs: () => Array.from({ length: lines.length }, (_, index) => lines.at(index)?.log.seq ?? 0),
  };
}

const range = (from: number, upto: number): number[] =>
  Array.from({ length: upto - from + 1 }, (_, index) => from + index);

test("it begins with the newest lines, follows, and goes back to the beginning without a hole", async (t) => {
  const { strand, reader, live, seqs } = desk(1234);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, null);
  assert.deepEqual(seqs(), range(735, 1234));
  await strand.streaming();
  strand.append(3);
  await live(3);
  await reader.loadOlder();
  assert.deepEqual(seqs(), range(1, 1237));
  assert.equal(reader.older, "beginning");
  const before = strand.asked.length;
  await reader.loadOlder();
  assert.equal(strand.asked.length, before);
});

test("a line that the server cannot show stands in its place, live and after a reload", async (t) => {
  const { strand, reader, lines, live, seqs } = desk(2);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, null);
  await strand.streaming();
  strand.append(1);
  strand.withhold();
  strand.append(1);
  await live(3);
  for (const again of [false, true]) {
    if (again) await reader.start(NO_FILTERS, null);
    assert.deepEqual(seqs(), range(1, 5));
    assert.equal(lines.at(3)?.text, "[withheld: item failed]");
    assert.equal(lines.at(3)?.time, Date.parse(log(4).ts));
  }
});

test("a full list that is followed lets go of its oldest lines", async (t) => {
  const { strand, reader, live, seqs } = desk(500, 500);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, null);
  await strand.streaming();
  strand.append(10);
  await live(10);
  assert.deepEqual(seqs(), range(11, 510));
  assert.equal(reader.fresh, 0);
});

test("a full list that is paused keeps what is looked at, counts what comes, and reads on whole", async (t) => {
  const { strand, reader, live, seqs } = desk(500, 800);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, null);
  await strand.streaming();
  reader.pause();
  strand.append(600);
  await live(600);
  assert.equal(reader.fresh, 600);
  assert.equal(seqs()[0], 1);
  assert.equal(reader.attached, seqs().at(-1) === 1100);
  while (!reader.attached) await reader.loadNewer();
  assert.deepEqual(seqs(), range(301, 1100));
  strand.append(1);
  await live(601);
  assert.equal(seqs().at(-1), reader.attached ? 1101 : 1100);
});

test("a place is shown with what follows, and reading on attaches it to the end", async (t) => {
  const { strand, reader, live, seqs } = desk(1300);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, { after: `${log(99).ts}#099`, line: 100 });
  assert.deepEqual(seqs(), range(100, 599));
  assert.equal(reader.following, false);
  assert.equal(reader.attached, false);
  await strand.streaming();
  strand.append(2);
  await live(2);
  assert.deepEqual(seqs(), range(100, 599));
  assert.equal(reader.fresh, 2);
  await reader.loadNewer();
  assert.deepEqual(seqs(), range(100, 1302));
  assert.equal(reader.attached, true);
  strand.append(1);
  await live(3);
  assert.deepEqual(seqs(), range(100, 1303));
});

test("a line that comes while the last page is under way leaves no hole", async (t) => {
  const { strand, reader, live, seqs } = desk(700);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, { after: `${log(300).ts}#300`, line: 301 });
  assert.equal(reader.attached, true);
  await strand.streaming();
  reader.attached = false;
  let answer = (): void => {};
  strand.held = new Promise((resolve) => (answer = resolve));
  const loading = reader.loadNewer();
  strand.append(5);
  await live(5);
  answer();
  await loading;
  while (!reader.attached) await reader.loadNewer();
  assert.deepEqual(seqs(), range(301, 705));
});

test("another beginning overtakes one that is under way", async (t) => {
  const { strand, reader, seqs, notices } = desk(50);
  t.after(() => reader.stop());
  let answer = (): void => {};
  strand.held = new Promise((resolve) => (answer = resolve));
  const first = reader.start(NO_FILTERS, null);
  strand.held = Promise.resolve();
  await reader.start({ ...NO_FILTERS, source: "backend" }, null);
  answer();
  await first;
  assert.equal(seqs().length, 50);
  assert.deepEqual(notices, []);
  assert.equal(reader.busy, "none");
});

test("a way to the beginning that was overtaken does not make the newest lines the first ones", async (t) => {
  const { strand, reader, seqs } = desk(2000);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, null);
  let answer = (): void => {};
  strand.held = new Promise((resolve) => (answer = resolve));
  const beginning = reader.toBeginning();
  strand.held = Promise.resolve();
  await reader.start(NO_FILTERS, null);
  answer();
  assert.equal(await beginning, false);
  await reader.loadOlder();
  assert.deepEqual(seqs(), range(501, 2000));
  assert.equal(await reader.toBeginning(), true);
  assert.equal(seqs()[0], 1);
});

test("a time that is not loaded is looked up by the server", async (t) => {
  const { reader, seqs, lines } = desk(2000);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, null);
  assert.equal(await reader.goTo(Date.parse(log(1990).ts)), "here");
  assert.equal(await reader.goTo(Date.parse(log(250).ts)), "fetched");
  assert.equal(seqs()[0], 250);
  assert.equal(lines.indexOfTime(Date.parse(log(250).ts)), 0);
  await reader.loadOlder();
  await reader.loadNewer();
  assert.deepEqual(seqs(), range(1, 1749));
});

test("a time before everything is not asked for when the beginning is loaded", async (t) => {
  const { strand, reader } = desk(300);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, null);
  const before = strand.asked.length;
  assert.equal(await reader.goTo(0), "here");
  assert.equal(strand.asked.length, before);
});

test("a way to a time that was overtaken leads nowhere, also to a time among the lines that were there", async (t) => {
  const { strand, reader, seqs } = desk(2000);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, null);
  for (const wanted of [1990, 250]) {
    let answer = (): void => {};
    strand.held = new Promise((resolve) => (answer = resolve));
    const filtered = reader.start(NO_FILTERS, null);
    const moment = reader.goTo(Date.parse(log(wanted).ts));
    strand.held = Promise.resolve();
    assert.equal(await reader.start(NO_FILTERS, { after: null, line: 1 }), true);
    answer();
    assert.deepEqual([await filtered, await moment], [false, "nowhere"]);
    assert.deepEqual(seqs(), range(1, 500));
    await reader.start(NO_FILTERS, null);
  }
});

test("a way to a time is overtaken by one that asks the server nothing", async (t) => {
  const { strand, reader, seqs } = desk(300);
  t.after(() => reader.stop());
  const later = Date.parse(log(900).ts);
  for (const elsewhere of [() => reader.follow(), () => reader.toBeginning(), () => reader.goTo(0)]) {
    await reader.start(NO_FILTERS, null);
    let answer = (): void => {};
    strand.held = new Promise((resolve) => (answer = resolve));
    const moment = reader.goTo(later);
    await elsewhere();
    reader.pause();
    answer();
    assert.equal(await moment, "nowhere");
    assert.equal(reader.following, false);
    assert.deepEqual(seqs(), range(1, 300));
  }
});

test("what is being loaded can be waited for", async (t) => {
  const { strand, reader, seqs } = desk(2000);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, null);
  let answer = (): void => {};
  strand.held = new Promise((resolve) => (answer = resolve));
  void reader.loadOlder();
  answer();
  await reader.settled;
  assert.deepEqual(seqs(), range(501, 2000));
});

test("where the newest page found nothing and says how far it looked, older lines are found from there", async (t) => {
  const { strand, reader, live, seqs } = desk(900);
  t.after(() => reader.stop());
  strand.blind = 300;
  await reader.start(NO_FILTERS, null);
  assert.deepEqual(seqs(), []);
  await reader.loadOlder();
  assert.deepEqual(seqs(), range(1, 600));
  assert.equal(reader.older, "beginning");
  await strand.streaming();
  strand.append(2);
  await live(2);
  assert.deepEqual(seqs(), [...range(1, 600), 901, 902]);
});

test("a server process that has not heard of a line is not asked for it without end", async (t) => {
  const { strand, reader, seqs } = desk(700);
  t.after(() => reader.stop());
  await reader.start(NO_FILTERS, { after: `${log(300).ts}#300`, line: 301 });
  await strand.streaming();
  reader.attached = false;
  reader.newestSeq = 701;
  const before = strand.asked.length;
  for (let turn = 0; turn < 5; turn += 1) await reader.loadNewer();
  assert.equal(strand.asked.length - before, 2);
  assert.equal(reader.attached, false);
  assert.deepEqual(seqs(), range(301, 700));
});
