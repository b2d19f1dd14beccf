import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";

import { toLine, type Log } from "../logs/line.js";
import { Lines } from "../logs/lines.js";
import { formatAddress, NO_FILTERS, parseAddress } from "../logs/place.js";
import { pieces, Search } from "../logs/search.js";
import { log } from "./strand.js";

const lineOf = (seq: number, message = `line ${seq}`) => toLine({ ...log(seq), message });
const linesOf = (...seqs: number[]) => seqs.map((seq) => lineOf(seq));

describe("lines", () => {
  test("are bounded at the other end", () => {
    const lines = new Lines(3);
    assert.deepEqual(lines.append(linesOf(5, 6)), { added: 2, dropped: 0 });
    assert.deepEqual(lines.append(linesOf(6, 7, 8)), { added: 2, dropped: 1 });
    assert.deepEqual([lines.first?.log.seq, lines.last?.log.seq], [6, 8]);
    assert.deepEqual(lines.prepend(linesOf(4, 5, 6)), { added: 2, dropped: 2 });
    assert.deepEqual([lines.first?.log.seq, lines.last?.log.seq], [4, 6]);
  });

  test("are found by number and by time", () => {
    const lines = new Lines();
    lines.append(linesOf(10, 20, 30));
    assert.equal(lines.indexOfSeq(20), 1);
    assert.equal(lines.indexOfSeq(21), 2);
    assert.equal(lines.indexOfTime(Date.parse(log(15).ts)), 1);
    assert.equal(lines.indexOfTime(Date.parse(log(31).ts)), 3);
  });

  test("have one row each, however many lines a message has", () => {
    assert.equal(lineOf(1, "a\r\n  b\u2028c").text, "a ⏎ b ⏎ c");
  });

  test("show that something is withheld, in its place", () => {
    const hidden = { event_id: "x", ts: log(5).ts, seq: 5, withheld: "unreadable" } as Log;
    const shown = toLine(hidden);
    assert.equal(shown.text, "[withheld: unreadable]");
    assert.deepEqual([shown.log.seq, shown.time, shown.log.level], [5, Date.parse(log(5).ts), "INFO"]);
  });
});

describe("search", () => {
  const lines = new Lines(6);
  lines.append([lineOf(1, "Alpha"), lineOf(2, "beta"), lineOf(3, "ALPHABET"), lineOf(4, "gamma")]);

  test("begins near the line that is looked at and goes round", () => {
    const search = new Search();
    search.start("alpha", lines, 2);
    assert.deepEqual([search.count, search.place, search.current], [2, 2, 3]);
    assert.equal(search.step(1), 1);
    assert.equal(search.step(-1), 3);
  });

  test("keeps up with lines that come and go at both ends", () => {
    const search = new Search();
    search.start("alpha", lines, 3);
    lines.append([lineOf(5, "alpha"), lineOf(6, "x"), lineOf(7, "alpha")]);
    search.update(lines);
    assert.deepEqual([search.count, search.place, search.current], [3, 1, 3]);
    lines.prepend([lineOf(1, "alpha")]);
    search.update(lines);
    assert.deepEqual([search.count, search.place, search.current], [3, 2, 3]);
    for (const line of [lineOf(7, "alpha"), lineOf(8, "y"), lineOf(9, "z")]) {
      lines.append([line]);
      search.update(lines);
    }
    assert.deepEqual([search.count, search.place, search.current], [2, 0, undefined]);
  });

  test("of nothing finds nothing", () => {
    const search = new Search();
    search.start("", lines, 1);
    assert.deepEqual([search.count, search.step(1)], [0, undefined]);
  });

  test("marks every match and leaves the text whole", () => {
    for (const [text, wanted] of [
      ["Banana", "an"],
      ["aaaa", "aa"],
      ["none", "x"],
      ["", "x"],
      ["İstanbul", "stan"],
    ] as const) {
      assert.equal(
        pieces(text, wanted)
          .map((piece) => piece.text)
          .join(""),
        text,
      );
    }
    assert.deepEqual(pieces("Banana", "an").filter((piece) => piece.marked).length, 2);
  });
});

describe("an address", () => {
  test("holds filters and a place, and comes back as it was", () => {
    const address = {
      filters: { minLevel: "WARN", source: "backend", service: "a b&c#d" },
      place: { after: "2025-11-12T10:30:05.123Z#041", line: 42 },
    } as const;
    assert.deepEqual(parseAddress(formatAddress(address)), address);
    assert.ok(!formatAddress(address).slice(1).includes("#"));
  });

  test("is empty when there is nothing to say", () => {
    assert.equal(formatAddress({ filters: NO_FILTERS, place: null }), "");
  });

  test("with nonsense in it says what is left", () => {
    const { filters, place } = parseAddress("#minLevel=LOUD&source=moon&service=x&line=-1&after=y");
    assert.deepEqual(filters, { minLevel: "DEBUG", source: "", service: "x" });
    assert.equal(place, null);
  });
});

describe("the colours", () => {
  const style = readFileSync(process.env["TOKENS"] ?? "../src/aftercommit/feed/app/pages/tokens.css", "utf-8");
  const themes = [...style.matchAll(/color-scheme: (light|dark);([^}]*)/g)].map((found) => ({
    name: found[1] as string,
    values: new Map(
      [...(found[2] as string).matchAll(/--([a-z-]+): (#[0-9a-f]{6});/g)].map((each) => [each[1], each[2]]),
    ),
  }));

  test("are the same whether dark was chosen or is the system's", () => {
    const dark = themes.filter(({ name }) => name === "dark");
    assert.equal(dark.length, 2);
    assert.deepEqual(dark[0]?.values, dark[1]?.values);
  });

  const luminance = (colour: string): number => {
    const parts = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16) / 255);
    const [red, green, blue] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * (red ?? 0) + 0.7152 * (green ?? 0) + 0.0722 * (blue ?? 0);
  };
  const contrast = (one: string, other: string): number => {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a) as [number, number];
    return (light + 0.05) / (dark + 0.05);
  };
  const grounds = ["ground", "ground-raised", "ground-hover", "ground-active"];
  const pairs = [
    ...["text", "text-soft", "accent", "level-debug", "level-info", "level-warn", "level-error"].flatMap((text) =>
      grounds.map((ground) => [text, ground]),
    ),
    ["level-warn", "level-warn-ground"],
    ["level-error", "level-error-ground"],
    ["text", "level-warn-ground"],
    ["text", "level-error-ground"],
    ["text-soft", "level-warn-ground"],
    ["text-soft", "level-error-ground"],
    ["on-accent", "accent"],
    ["on-mark", "mark"],
  ] as [string, string][];

  for (const { name, values } of themes) {
    for (const [text, ground] of pairs) {
      test(`${text} can be read on ${ground} in ${name}`, () => {
        const ratio = contrast(values.get(text) ?? "", values.get(ground) ?? "");
        assert.ok(ratio >= 4.5, `${ratio.toFixed(2)} to 1`);
      });
    }
  }
});
