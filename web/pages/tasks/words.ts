/** Labels for states, actions and events, and the sentences made of them. Pure. */

import { type Directory } from "./directory.js";
import { type Action, type Entry, type Machine, type Task, type TaskEvent } from "./model.js";

/** `submit_report` becomes "Submit report"; works for names that this page does not know, too. */
export function label(name: string): string {
  const words = name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** An action as a button label. “Cancel” alone would look like closing the dialog. */
export function deed(action: string): string {
  return action === "cancel" ? "Cancel task" : label(action);
}

/** Actions that move a task forward; all others are corrections. */
const FORWARD: readonly string[] = ["assign", "submit_report", "approve", "reject"];
const DONE: readonly string[] = ["approved", "cancelled"];

export type Turn = "mine" | "others" | "done";

export function turnOf(task: Task): Turn {
  if (DONE.includes(task.state)) return "done";
  return task.actions.some((action) => FORWARD.includes(action)) ? "mine" : "others";
}

/** Whom the task waits for, in a few words. */
export function turnWords(task: Task, machine: Machine, directory: Directory): string {
  const turn = turnOf(task);
  if (turn === "mine") return "Your turn";
  if (turn === "done") return "Done";
  const waiting = waitedFor(task, machine, directory);
  if (waiting.length > 0) return `Waiting for ${either(waiting)}`;
  return task.state === "reported" ? "Nobody can approve this: reassign it" : "Waiting";
}

function waitedFor(task: Task, machine: Machine, directory: Directory): readonly string[] {
  const rows = machine.actions.filter((row) => FORWARD.includes(row.action) && row.from_states.includes(task.state));
  const relations = new Set(rows.flatMap((row) => row.by));
  const barred = rows.some((row) => row.never_by.includes("assignee")) ? task.assignee_user_id : null;
  const names: string[] = [];
  const add = (user: number | null): void => {
    if (user !== null && user !== barred && !names.includes(directory.object(user))) names.push(directory.object(user));
  };
  if (relations.has("assignee")) add(task.assignee_user_id);
  if (relations.has("creator")) add(task.creator_user_id);
  if (relations.has("supervisor")) {
    const others = task.supervisor_role_ids.filter((role) => barred === null || directory.hasOther(role, barred));
    names.push(...others.map((role) => `the role ${directory.role(role)}`));
  }
  return names;
}

/** "a", "a or b", "a, b or c". */
export function either(names: readonly string[], word = "or"): string {
  if (names.length < 2) return names.join("");
  return `${names.slice(0, -1).join(", ")} ${word} ${names.at(-1)}`;
}

/** What happened, about a task that the reader sees beside it: "Grace assigned it to you". */
export function eventSentence(event: TaskEvent, directory: Directory): string {
  const who = directory.subject(event.actor_user_id);
  const to = assigneeIn(event.payload);
  const target = to === undefined || to === null ? "" : ` to ${whom(to, event.actor_user_id, directory)}`;
  switch (event.event_type) {
    case "task_created":
      return `${who} created it${target === "" ? "" : ` and assigned it${target}`}`;
    case "task_assigned":
      return `${who} assigned it${target}`;
    case "task_reassigned":
      return `${who} reassigned it${target}`;
    case "report_submitted":
      return `${who} submitted a report`;
    case "report_approved":
      return `${who} approved the report`;
    case "report_rejected":
      return `${who} rejected the report`;
    case "task_reopened":
      return `${who} reopened it`;
    case "task_cancelled":
      return `${who} cancelled it`;
    default:
      return `${who}: ${label(event.event_type).toLowerCase()}`;
  }
}

const STEPS: Readonly<Record<string, string>> = {
  create: "created it",
  assign: "assigned it",
  reassign: "reassigned it",
  submit_report: "submitted a report",
  approve: "approved the report",
  reject: "rejected the report",
  reopen: "reopened it",
  cancel: "cancelled it",
};

/** These actions name an assignee. */
const GIVEN: Readonly<Record<string, string>> = { create: " and assigned it", assign: "", reassign: "" };

export function stepSentence(entry: Entry, directory: Directory): string {
  const done = `${directory.subject(entry.actor_user_id)} ${STEPS[entry.action] ?? label(entry.action).toLowerCase()}`;
  const given = GIVEN[entry.action];
  if (given === undefined || entry.assignee_user_id === null) return done;
  return `${done}${given} to ${whom(entry.assignee_user_id, entry.actor_user_id, directory)}`;
}

function assigneeIn(payload: Readonly<Record<string, unknown>>): number | null | undefined {
  const value = payload["assignee_user_id"];
  return typeof value === "number" || value === null ? value : undefined;
}

function whom(user: number, actor: number, directory: Directory): string {
  if (user !== actor) return directory.object(user);
  return directory.isMe(user) ? "yourself" : "themselves";
}

/** The title, or the task number when the server sent no valid title. */
export function titleOf(event: TaskEvent): string {
  const title = event.payload["title"];
  return typeof title === "string" && title !== "" ? title : `Task ${event.task_id}`;
}

/** The report, reason or comment of a step. */
export function noteOf(event: TaskEvent): string {
  const note = event.payload["note"];
  return typeof note === "string" ? note : "";
}

/** The input that an action needs. */
export interface Asks {
  readonly field: "assignee_user_id" | "report" | "comment" | "reason";
  readonly label: string;
  readonly required: boolean;
  /** Characters at most. */
  readonly longest?: number;
}

export const ASKS: Readonly<Record<Action, Asks>> = {
  assign: { field: "assignee_user_id", label: "Assign to", required: true },
  reassign: { field: "assignee_user_id", label: "Reassign to", required: true },
  submit_report: {
    field: "report",
    label: "Report: what you did, and how to check it",
    required: true,
    longest: 10_000,
  },
  approve: { field: "comment", label: "Comment (optional)", required: false, longest: 2000 },
  reject: { field: "reason", label: "What is missing", required: true, longest: 2000 },
  reopen: { field: "reason", label: "Reason for reopening", required: true, longest: 2000 },
  cancel: { field: "reason", label: "Reason for cancelling", required: true, longest: 2000 },
};

/** Actions in the order of their buttons: those that move the task forward come first. */
export function inOrder(actions: readonly Action[]): readonly Action[] {
  return (Object.keys(ASKS) as Action[])
    .filter((action) => actions.includes(action))
    .sort((one, other) => weight(one) - weight(other));
}

const weight = (action: Action): number => (FORWARD.includes(action) ? 0 : 1);

export function isForward(action: Action): boolean {
  return FORWARD.includes(action);
}
