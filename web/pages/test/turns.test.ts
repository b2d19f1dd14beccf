import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { Turns, type Step } from "../shared/turns.js";

/** Steps that write their name when they begin and when they are done, which is when they are let go. */
class Script {
  readonly told: string[] = [];
  #held = new Map<string, () => void>();

  slow(name: string): Step {
    return async () => {
      this.told.push(name);
      await new Promise<void>((resolve) => this.#held.set(name, resolve));
      this.told.push(`${name} done`);
    };
  }

  quick(name: string): Step {
    return () => void this.told.push(name);
  }

  /** Resolves when whatever waited for it has had its turn. */
  async finish(name: string): Promise<void> {
    this.#held.get(name)?.();
    await new Promise((resolve) => setImmediate(resolve));
  }
}

describe("turns", () => {
  test("are had at once where nothing is under way", () => {
    const script = new Script();
    const turns = new Turns();
    turns.act(script.quick("copy"));
    assert.deepEqual(script.told, ["copy"]);
  });

  test("of what is done with a line come after the move that is under way, in order", async () => {
    const script = new Script();
    const turns = new Turns();
    turns.move(script.slow("go"));
    for (const name of ["down", "down again", "copy"]) turns.act(script.quick(name));
    assert.deepEqual(script.told, ["go"]);
    await script.finish("go");
    assert.deepEqual(script.told, ["go", "go done", "down", "down again", "copy"]);
  });

  test("are not waited for by a move that overtakes another, and what comes then waits for both", async () => {
    const script = new Script();
    const turns = new Turns();
    turns.move(script.slow("to the beginning"));
    turns.move(script.slow("to the end"));
    turns.act(script.quick("copy"));
    assert.deepEqual(script.told, ["to the beginning", "to the end"]);
    await script.finish("to the beginning");
    await script.finish("to the end");
    assert.deepEqual(script.told.at(-1), "copy");
  });

  test("of acts are not overtaken: what is shared is what was there", async () => {
    const script = new Script();
    const turns = new Turns();
    turns.act(script.slow("share"));
    turns.move(script.slow("to the end"));
    assert.deepEqual(script.told, ["share"]);
    await script.finish("share");
    assert.deepEqual(script.told, ["share", "share done", "to the end"]);
  });

  test("are kept by a move that others stand before", async () => {
    const script = new Script();
    const turns = new Turns();
    turns.move(script.slow("to the beginning"));
    turns.act(script.slow("share"));
    turns.move(script.slow("to the end"));
    turns.act(script.quick("copy"));
    await script.finish("to the beginning");
    await script.finish("share");
    await script.finish("to the end");
    assert.deepEqual(
      script.told,
      ["to the beginning", "share", "to the end"].flatMap((name) => [name, `${name} done`]).concat("copy"),
    );
  });

  test("may be asked for in a turn", async () => {
    const script = new Script();
    const turns = new Turns();
    turns.act(() => {
      turns.act(script.quick("inner"));
      script.told.push("outer");
    });
    await script.finish("outer");
    assert.deepEqual(script.told, ["outer", "inner"]);
  });
});
