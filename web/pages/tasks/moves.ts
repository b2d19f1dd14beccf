/** The workflow dialog: the server's state machine as a table. */

import { element, find, type Child } from "@aftercommit/ui";

import { badge } from "./list.js";
import { type Machine, type Rule } from "./model.js";
import { either, label } from "./words.js";

const HEADS = ["Action", "From", "To", "Allowed for", "Notifies"];

export function openMoves(machine: Machine, current: string | null): void {
  const dialog = find("moves", HTMLDialogElement);
  const rows = machine.actions.map((row) => rowOf(row, machine, current));
  const head = element("tr", {}, ...HEADS.map((text) => element("th", { scope: "col" }, text)));
  const table = element("table", { class: "machine" }, element("thead", {}, head), element("tbody", {}, ...rows));
  const close = element("button", { class: "button main" }, "Close");
  dialog.replaceChildren(
    element("h2", { id: "moves-title", tabindex: -1, autofocus: true }, "Workflow"),
    element("p", { class: "soft" }, INTRODUCTION),
    ...(current === null
      ? []
      : [element("p", { class: "soft" }, "Highlighted: actions that start from the open task's state.")]),
    element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table of actions" }, table),
    element("form", { method: "dialog", class: "ends" }, close),
  );
  dialog.showModal();
}

const INTRODUCTION =
  "A task changes only through these actions. Each is one transaction: the task, its history and the event are " +
  "committed together. A user who is not allowed to act gets 403; an action in the wrong state gets 409.";

function rowOf(row: Rule, machine: Machine, current: string | null): HTMLElement {
  const never = row.never_by.length > 0 ? `, but not the ${either(row.never_by)}` : "";
  const heard = machine.routing.find(({ event_type }) => event_type === row.event_type)?.hears ?? [];
  const cells: readonly (readonly [string, readonly Child[]])[] = [
    ["From", [row.from_states.length > 0 ? states(...row.from_states.map(badge)) : "none"]],
    ["To", [states(badge(row.to_state), ...unassigned(row))]],
    ["Allowed for", [`${row.by.length > 0 ? either(row.by) : "anyone"}${never}`]],
    [
      "Notifies",
      [
        either(
          heard.map((name) => name.replaceAll("_", " ")),
          "and",
        ),
      ],
    ],
  ];
  return element(
    "tr",
    { class: current !== null && row.from_states.includes(current) ? "current" : undefined },
    element("th", { scope: "row" }, label(row.action)),
    ...cells.map(([head, content]) => element("td", { "data-head": head }, ...content)),
  );
}

/** Without an assignee, some actions lead to another state. */
function unassigned({ to_state, to_state_unassigned }: Rule): readonly Child[] {
  return to_state === to_state_unassigned ? [] : ["or", badge(to_state_unassigned), "without an assignee"];
}

function states(...parts: Child[]): HTMLElement {
  return element("span", { class: "states" }, ...parts);
}
