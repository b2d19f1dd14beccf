import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { FeedError } from "@aftercommit/client";

import { describe as inWords } from "../shared/connection.js";
import { usersOf } from "../shared/sample.js";
import { ApiError, lifetimeOf, readAnswer } from "../tasks/api.js";
import { Directory } from "../tasks/directory.js";
import { type Entry, type Machine, type Task, type TaskEvent } from "../tasks/model.js";
import { formatPlace, parsePlace } from "../tasks/place.js";
import { Refresher } from "../tasks/refresher.js";
import { Tasks } from "../tasks/tasks.js";
import { countdown } from "../tasks/times.js";
import {
  either,
  eventSentence,
  inOrder,
  label,
  noteOf,
  stepSentence,
  titleOf,
  turnOf,
  turnWords,
} from "../tasks/words.js";

const PEOPLE = [
  { user_id: 1, name: "Ada", roles: [{ role_id: 1, name: "administrator" }] },
  { user_id: 2, name: "Grace", roles: [{ role_id: 2, name: "lead" }] },
  { user_id: 3, name: "Edsger", roles: [] },
] as const;
const ROLES = [{ role_id: 2, name: "lead" }];
const grace = new Directory(PEOPLE[1], PEOPLE, ROLES);

const MACHINE: Machine = {
  states: ["new", "assigned", "reported", "approved"],
  actions: [
    rule("assign", ["new"], ["creator", "supervisor"]),
    rule("submit_report", ["assigned", "rejected"], ["assignee"]),
    rule("approve", ["reported"], ["creator", "supervisor"], ["assignee"]),
    rule("cancel", ["new", "assigned", "reported"], ["creator"]),
  ],
  routing: [],
};

function rule(
  action: string,
  from_states: string[],
  by: string[],
  never_by: string[] = [],
): Machine["actions"][number] {
  return { action, from_states, by, never_by, to_state: "", to_state_unassigned: "", event_type: "" };
}

function task(fields: Partial<Task> = {}): Task {
  return {
    task_id: 7,
    title: "count the chairs",
    description: "",
    state: "assigned",
    creator_user_id: 1,
    assignee_user_id: 3,
    supervisor_role_ids: [],
    report: null,
    created_at: "2025-11-12T10:30:05.123Z",
    updated_at: "2025-11-12T10:30:05.123Z",
    actions: [],
    version: 1,
    ...fields,
  };
}

function event(event_type: string, actor_user_id: number, payload: Record<string, unknown> = {}): TaskEvent {
  const created_at = "2025-11-12T10:30:05.123Z";
  return { event_id: 5, task_id: 7, event_type, actor_user_id, actor_role_id: null, created_at, payload };
}

describe("whom a task waits for", () => {
  test("is mine when I can carry the task on, not when I can only correct it", () => {
    assert.equal(turnOf(task({ actions: ["submit_report"] })), "mine");
    assert.equal(turnOf(task({ actions: ["reassign", "cancel"] })), "others");
    assert.equal(turnOf(task({ state: "approved", actions: ["reopen"] })), "done");
  });

  test("is told by name", () => {
    assert.equal(turnWords(task({ actions: ["submit_report"] }), MACHINE, grace), "Your turn");
    assert.equal(turnWords(task(), MACHINE, grace), "Waiting for Edsger");
    const reported = task({ state: "reported", supervisor_role_ids: [2] });
    assert.equal(turnWords(reported, MACHINE, grace), "Waiting for Ada or the role lead");
    assert.equal(turnWords(task({ state: "cancelled" }), MACHINE, grace), "Done");
  });

  test("is nobody's who is barred from it", () => {
    const own = task({ state: "reported", creator_user_id: 3, supervisor_role_ids: [2] });
    assert.equal(turnWords(own, MACHINE, grace), "Waiting for the role lead");
    assert.equal(turnWords(task({ state: "reported", creator_user_id: 3 }), MACHINE, grace), "Nobody can approve this: reassign it");
  });
});

describe("words", () => {
  test("are made of names, also of new ones", () => {
    assert.deepEqual(["submit_report", "new", "escalated_twice"].map(label), [
      "Submit report",
      "New",
      "Escalated twice",
    ]);
    assert.deepEqual(
      [either([]), either(["a"]), either(["a", "b"]), either(["a", "b", "c"], "and")],
      ["", "a", "a or b", "a, b and c"],
    );
  });

  test("tell what happened, and to whom", () => {
    assert.equal(
      eventSentence(event("task_created", 1, { assignee_user_id: 3 }), grace),
      "Ada created it and assigned it to Edsger",
    );
    assert.equal(eventSentence(event("task_created", 2, { assignee_user_id: null }), grace), "You created it");
    assert.equal(eventSentence(event("task_assigned", 1, { assignee_user_id: 2 }), grace), "Ada assigned it to you");
    assert.equal(
      eventSentence(event("task_reassigned", 2, { assignee_user_id: 2 }), grace),
      "You reassigned it to yourself",
    );
    assert.equal(eventSentence(event("report_rejected", 9), grace), "user 9 rejected the report");
    assert.equal(eventSentence(event("task_escalated", 1), grace), "Ada: task escalated");
  });

  test("of a step name who did it", () => {
    const entry: Entry = {
      version: 3,
      action: "submit_report",
      from_state: "assigned",
      to_state: "reported",
      actor_user_id: 3,
      actor_role_id: null,
      assignee_user_id: 3,
      note: "eleven",
      at: "2025-11-12T10:30:05.123Z",
      event_id: "x",
    };
    assert.equal(stepSentence(entry, grace), "Edsger submitted a report");
    assert.equal(stepSentence({ ...entry, action: "split_up", actor_user_id: 2 }, grace), "You split up");
    assert.equal(stepSentence({ ...entry, action: "reassign", actor_user_id: 2 }, grace), "You reassigned it to Edsger");
    assert.equal(stepSentence({ ...entry, action: "create" }, grace), "Edsger created it and assigned it to themselves");
  });

  test("are there where an event lacks them", () => {
    assert.equal(titleOf(event("task_created", 1, { title: "<b>x</b>" })), "<b>x</b>");
    assert.equal(titleOf(event("task_created", 1, { title: 5 })), "Task 7");
    assert.deepEqual([noteOf(event("x", 1, { note: "why" })), noteOf(event("x", 1, { note: null }))], ["why", ""]);
  });

  test("offer first what carries the task on", () => {
    assert.deepEqual(inOrder(["cancel", "reassign", "reject", "approve"]), ["approve", "reject", "reassign", "cancel"]);
  });

  test("name people that only events know", () => {
    const directory = new Directory(PEOPLE[1], PEOPLE, ROLES);
    directory.learn(
      event("task_assigned", 8, { actor_name: "Barbara", assignee_user_id: 1, assignee_name: "Another" }),
    );
    assert.deepEqual([directory.name(8), directory.name(1), directory.name(null)], ["Barbara", "Ada", "nobody"]);
  });
});

describe("a place", () => {
  test("is told by the address and read from it", () => {
    const place = { task: 7, filters: { state: "reported", turn: "mine" } } as const;
    assert.equal(formatPlace(place), "tasks/board/7#state=reported&move=mine");
    assert.deepEqual(parsePlace("/prefix/tasks/board/7", "#state=reported&move=mine"), place);
  });

  test("leaves nonsense out", () => {
    const nowhere = { task: null, filters: { state: "", turn: "" } };
    for (const path of [
      "/tasks/board",
      "/tasks/board/",
      "/tasks/board/0",
      "/tasks/board/x",
      "/tasks/board/99999999999999999999",
    ]) {
      assert.deepEqual(parsePlace(path, "#state=lost&move=nobody&x"), nowhere, path);
    }
    assert.equal(formatPlace({ task: null, filters: { state: "", turn: "" } }), "tasks/board");
  });
});

describe("tasks", () => {
  test("are newest first, and narrowed", () => {
    const tasks = new Tasks();
    tasks.put(task({ task_id: 1, state: "reported", actions: ["approve"] }));
    tasks.put(task({ task_id: 3 }));
    tasks.put(task({ task_id: 2, state: "approved" }));
    const ids = (state: string, turn: "" | "mine" | "done"): number[] =>
      tasks.shown({ state, turn }).map((each) => each.task_id);
    assert.deepEqual(ids("", ""), [3, 2, 1]);
    assert.deepEqual([ids("approved", ""), ids("", "mine"), ids("assigned", "done")], [[2], [1], []]);
    tasks.remove(3);
    assert.deepEqual(ids("", ""), [2, 1]);
  });

  test("are never replaced by what they were before", () => {
    const tasks = new Tasks();
    assert.equal(tasks.put(task({ version: 4, state: "approved" })), true);
    assert.equal(tasks.put(task({ version: 3, state: "reported" })), false);
    assert.equal(tasks.get(7)?.state, "approved");
    // The same version may allow other things than before: roles come and go.
    assert.equal(tasks.put(task({ version: 4, state: "approved", actions: ["reopen"] })), true);
    assert.deepEqual(tasks.get(7)?.actions, ["reopen"]);
  });

  test("that are asked for again are shown until they have come, and those that came meanwhile stay", () => {
    const tasks = new Tasks();
    const ids = (): number[] => tasks.shown({ state: "", turn: "" }).map((each) => each.task_id);
    for (const task_id of [1, 2, 3]) tasks.put(task({ task_id, version: 5 }));
    tasks.doubt();
    tasks.put(task({ task_id: 4 }));
    assert.deepEqual(ids(), [4, 3, 2, 1]);
    // The page that was asked for is older than what is known of its task, and has it all the same.
    tasks.put(task({ task_id: 2, version: 4 }));
    tasks.settle();
    assert.deepEqual(ids(), [4, 2]);
    assert.equal(tasks.get(2)?.version, 5);
  });
});

describe("what has changed", () => {
  test("is loaded once at a time, and once more when it changed meanwhile", async () => {
    const begun: number[] = [];
    const ends: (() => void)[] = [];
    const refresher = new Refresher((id) => {
      begun.push(id);
      return new Promise((resolve) => ends.push(resolve));
    }, 2);
    for (const id of [7, 7, 7, 8, 9]) refresher.ask(id);
    assert.deepEqual(begun, [7, 8]);
    ends[0]?.();
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual(begun, [7, 8, 9]);
    ends[1]?.();
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual(begun, [7, 8, 9, 7]);
    ends[2]?.();
    ends[3]?.();
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual(begun, [7, 8, 9, 7]);
  });
});

describe("answers", () => {
  test("are what the server says, or an error that says it", () => {
    assert.deepEqual(readAnswer(200, '{"task_id": 7}'), { task_id: 7 });
    const conflict = caught(() =>
      readAnswer(409, '{"error":"conflict","message":"Task 7 is new","details":{"state":"new"}}'),
    );
    assert.deepEqual([conflict.status, conflict.message, conflict.details], [409, "Task 7 is new", { state: "new" }]);
    assert.equal(caught(() => readAnswer(502, "<html>")).message, "The server responded with status 502.");
    assert.equal(caught(() => readAnswer(200, "<html>")).status, 200);
  });
});

function caught(call: () => unknown): ApiError {
  try {
    call();
  } catch (error) {
    assert.ok(error instanceof ApiError);
    return error;
  }
  throw new Error("nothing was thrown");
}

describe("a code", () => {
  test("lives by the clock of the server", () => {
    const until = "2025-11-12T10:40:00.000Z";
    assert.equal(lifetimeOf(until, "Wed, 12 Nov 2025 10:30:00 GMT", 0), 598_000);
    assert.equal(lifetimeOf(until, null, Date.parse("2025-11-12T10:39:00Z")), 60_000);
  });

  test("is counted down until it is over", () => {
    assert.deepEqual(
      [countdown(600_000, 0), countdown(600_000, 541_500), countdown(1_000, 999)],
      ["10:00", "0:59", "0:01"],
    );
    assert.deepEqual([countdown(1_000, 1_000), countdown(NaN, 0)], [null, null]);
  });
});

describe("what all pages share", () => {
  test("says what is followed", () => {
    const events = { one: "event", many: "events" };
    const known = { left: null, age: null, within: null, doubt: null };
    const said = inWords({ name: "waiting", wait: 3, error: null }, { ...known, left: 3 }, events);
    assert.deepEqual([said.text, said.why.includes("no event is lost.")], ["Waiting, retry in 3 s", true]);
    assert.ok(inWords({ name: "streaming", wait: null, error: null }, known, events).why.startsWith("New events"));
  });

  test("calls live what was heard in time, and says of everything else how old it is", () => {
    const events = { one: "event", many: "events" };
    const streaming = { name: "streaming", wait: null, error: null } as const;
    const at = (age: number, doubt: string | null = null): string[] => {
      const { name, text, why } = inWords(streaming, { left: null, age, within: 11, doubt }, events);
      return [name, text, why.split(". ").at(-1) ?? ""];
    };
    assert.deepEqual(at(4.9), ["streaming", "Live", "Last update 4 s ago."]);
    assert.deepEqual(at(12), ["checking", "Checking · last update 12 s ago", "Last update 12 s ago."]);
    assert.deepEqual(at(2, "Failed."), ["checking", "Checking · last update 2 s ago", "Last update 2 s ago."]);
    assert.equal(at(7200)[1], "Checking · last update 2 h ago");
    const error = new FeedError(0, "unreachable", "Cannot reach the server: Failed to fetch");
    const polling = inWords({ name: "polling", wait: 5, error }, { left: 5, age: 130, within: null, doubt: null }, events);
    assert.equal(polling.text, "Not connected, next try in 5 s · last update 2 min ago");
  });

  test("offers the users that a system knows", () => {
    const user = (name: string, systems?: string[]) => ({
      user: name,
      about: "",
      token: "",
      ...(systems && { systems }),
    });
    const sample = { users: [user("1", ["tasks"]), user("ada", ["logs"]), user("any")], systems: [], chats: null };
    assert.deepEqual(
      usersOf(sample, "tasks").map((each) => each.user),
      ["1", "any"],
    );
    assert.deepEqual(usersOf(null, "tasks"), []);
  });
});
