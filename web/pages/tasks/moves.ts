/** "How tasks move": the state machine as the server has it, as a table. */

import { element, find, type Child } from "@aftercommit/ui";

import { badge } from "./list.js";
import { type Machine, type Rule } from "./model.js";
import { either, label } from "./words.js";

const HEADS = ["Step", "From", "To", "By whom", "Who hears of it"];

export function openMoves(machine: Machine, current: string | null): void {
  const dialog = find("moves", HTMLDialogElement);
  const rows = machine.actions.map((row) => rowOf(row, machine, current));
  const head = element("tr", {}, ...HEADS.map((text) => element("th", { scope: "col" }, text)));
  const table = element("table", { class: "machine" }, element("thead", {}, head), element("tbody", {}, ...rows));
  const close = element("button", { class: "button main" }, "Close");
  dialog.replaceChildren(
    element("h2", { id: "moves-title", tabindex: -1, autofocus: true }, "How tasks move"),
    element("p", { class: "soft" }, INTRODUCTION),
    ...(current === null
      ? []
      : [element("p", { class: "soft" }, "Marked: what starts from the state of the open task.")]),
    element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table of steps" }, table),
    element("form", { method: "dialog", class: "ends" }, close),
  );
  dialog.showModal();
}

const INTRODUCTION =
  "A task changes by these steps and no others. Each is one transaction: the task, its history and the event commit " +
  "together. Who is none of these people gets 403, who comes at the wrong time 409.";

function rowOf(row: Rule, machine: Machine, current: string | null): HTMLElement {
  const never = row.never_by.length > 0 ? `, never the ${either(row.never_by)}` : "";
  const heard = machine.routing.find(({ event_type }) => event_type === row.event_type)?.hears ?? [];
  const cells: readonly (readonly [string, readonly Child[]])[] = [
    ["From", [row.from_states.length > 0 ? states(...row.from_states.map(badge)) : "nothing"]],
    ["To", [states(badge(row.to_state), ...unassigned(row))]],
    ["By whom", [`${row.by.length > 0 ? either(row.by) : "anybody"}${never}`]],
    [
      "Who hears of it",
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

/** With nobody assigned, some steps lead elsewhere. */
function unassigned({ to_state, to_state_unassigned }: Rule): readonly Child[] {
  return to_state === to_state_unassigned ? [] : ["or", badge(to_state_unassigned), "without an assignee"];
}

function states(...parts: Child[]): HTMLElement {
  return element("span", { class: "states" }, ...parts);
}
