import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { Alarm, wakeful } from "../src/clock.js";
import { manual } from "./scripted.js";

describe("an alarm", () => {
  test("rings when its time is over, and once", () => {
    const { clock, pass } = manual();
    let rung = 0;
    const alarm = new Alarm(clock, () => (rung += 1));
    alarm.set(11);
    pass(10.9);
    assert.equal(rung, 0);
    pass(0.2);
    assert.equal(rung, 1);
    pass(100);
    assert.equal(rung, 1);
  });

  test("that is set again in time does not ring", () => {
    const { clock, pass } = manual();
    const alarm = new Alarm(clock, () => assert.fail());
    for (let beat = 0; beat < 20; beat += 1) {
      alarm.set(11);
      pass(5);
    }
    alarm.clear();
    pass(100);
  });

  test("of a machine that slept lets what came meanwhile be seen first", () => {
    const { clock, pass } = manual();
    let rung = 0;
    const alarm = new Alarm(clock, () => (rung += 1));
    alarm.set(11);
    pass(3600, 3000);
    assert.equal(rung, 0);
    alarm.set(11);
    pass(10.9);
    assert.equal(rung, 0);
  });

  test("of a machine that slept rings soon after when nothing has come", () => {
    const { clock, pass } = manual();
    let rung = 0;
    const alarm = new Alarm(clock, () => (rung += 1));
    alarm.set(11);
    pass(3001.5, 3000);
    assert.equal(rung, 0);
    pass(2.1);
    assert.equal(rung, 1);
  });

  test("of a page in the background, where every timer is late, rings in the end", () => {
    const { clock, pass } = manual();
    let rung = 0;
    new Alarm(clock, () => (rung += 1)).set(11);
    pass(200, 59);
    assert.equal(rung, 1);
  });
});

test("a clock that stands still while the machine sleeps is put right by the one on the wall", () => {
  let steady = 100;
  let wall = 5000;
  const now = wakeful(
    () => steady,
    () => wall,
  );
  steady += 2;
  wall += 2;
  assert.equal(now(), 102);
  wall += 3600;
  assert.equal(now(), 3702);
  // A wall clock that is set back changes nothing.
  wall -= 7200;
  steady += 1;
  assert.equal(now(), 3703);
});
