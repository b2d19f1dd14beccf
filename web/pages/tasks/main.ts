/** The task board: asks for a user, reads the address, and connects the page's controls. */

import { element, find, toast, wireSkipLink, wireThemeButton } from "@aftercommit/ui";

import { describeKeys, listenToKeys, type Key } from "../shared/keys.js";
import { rootOfSite } from "../shared/root.js";
import { sampleOf } from "../shared/sample.js";
import { Session, type Reading } from "../shared/session.js";
import { Turns } from "../shared/turns.js";
import { Api, ApiError, type TokenSource } from "./api.js";
import { Board } from "./board.js";
import { Directory } from "./directory.js";
import { type Machine } from "./model.js";
import { parsePlace, STATES, type Filters } from "./place.js";
import { TelegramDialog } from "./telegram.js";
import { label } from "./words.js";

const root = rootOfSite();
const session = new Session({
  key: "aftercommit.reading.tasks",
  root,
  system: "tasks",
  question: "Who are you?",
  needed: "Paste a token whose subject (sub) is a user number of the task tracker.",
  begin: "Continue",
});
interface Desk {
  readonly board: Board;
  readonly telegram: TelegramDialog;
}

/** Set as soon as the directory is loaded. */
let desk: Desk | undefined;
const turns = new Turns();
const RETRY_FIRST = 2;
const RETRY_LONGEST = 60;

/** Switching users reloads the page, so that nothing of the previous user's data stays. */
async function changePerson(why: string): Promise<void> {
  const chosen = await session.ask(find("readers", HTMLDialogElement), why, session.kept());
  if (chosen) location.reload();
  else if (!session.kept()) sayInstead("Choose a user to see their tasks.");
}

function tokenOf(first: Reading): TokenSource {
  let reading = first;
  return async (refused) => {
    if (refused) reading = await session.renewed(reading);
    return reading.token;
  };
}

/** Load the directory and the workflow, then start the board. Retries while the server has trouble. */
async function begin(api: Api, token: TokenSource, wait = RETRY_FIRST): Promise<void> {
  try {
    const [me, users, roles, machine] = await Promise.all([api.me(), api.users(), api.roles(), api.machine()]);
    desk = work(api, token, new Directory(me, users, roles), machine);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) void changePerson(error.message);
    else if (error.status === 403 || error.status === 404) sayInstead(error.message);
    else {
      find("empty", HTMLElement).textContent = `${error.message} Retrying automatically.`;
      const next = Math.min(wait * 2, RETRY_LONGEST);
      setTimeout(() => turns.move(() => begin(api, token, next)), wait * 1000);
    }
  }
}

/** Run an action on the board. While the board loads, the action waits. */
function atDesk(act: (desk: Desk) => void): void {
  turns.act(() => (desk ? act(desk) : toast("Tasks are still loading")));
}

function sayInstead(message: string): void {
  const other = element("button", { class: "button main", type: "button" }, "Choose a user");
  other.addEventListener("click", () => void changePerson(""));
  find("empty", HTMLElement).replaceChildren(element("p", { role: "alert" }, message), other);
}

function work(api: Api, token: TokenSource, directory: Directory, machine: Machine): Desk {
  dressFor(directory);
  const place = parsePlace(location.pathname, location.hash);
  const unauthorised = (message: string): void => void changePerson(message);
  const board = new Board({ root, api, token, directory, machine, place, unauthorised });
  const telegram = new TelegramDialog({
    name: directory.me.name,
    code: () => api.linkCode(),
    chats: async () => (await sampleOf(root))?.chats ?? null,
  });
  wire(board, telegram);
  board.start();
  return { board, telegram };
}

function dressFor({ me }: Directory): void {
  const roles = me.roles.map(({ name }) => name).join(", ");
  find("reader-name", HTMLElement).textContent = me.name;
  find("reader", HTMLElement).title = `${me.name}${roles === "" ? "" : ` (${roles})`}. Switch user`;
  find("events-title", HTMLElement).textContent = `Activity for ${me.name}`;
  for (const part of document.querySelectorAll("main :disabled, .intro :disabled")) part.removeAttribute("disabled");
}

function wire(board: Board, telegram: TelegramDialog): void {
  const buttons: Readonly<Record<string, () => void>> = {
    new: () => board.create(),
    how: () => board.showMoves(),
    connect: () => telegram.open(),
    "to-list": () => board.pane("list"),
    "to-events": () => board.pane("events"),
    back: () => board.open(null),
  };
  for (const [id, act] of Object.entries(buttons)) find(id, HTMLButtonElement).addEventListener("click", act);
  wireFilters(board);
  document.addEventListener("click", (event) => follow(board, event));
}

/** A plain click on a task's link opens the task on this page. */
function follow(board: Board, event: MouseEvent): void {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button !== 0) return;
  const link = event.target instanceof Element ? event.target.closest<HTMLElement>("a[data-task]") : null;
  if (!link) return;
  event.preventDefault();
  board.open(Number(link.dataset["task"]));
}

function wireFilters(board: Board): void {
  const state = find("state", HTMLSelectElement);
  const turn = find("turn", HTMLSelectElement);
  state.append(...STATES.map((name) => element("option", { value: name }, label(name))));
  const show = (filters: Filters): void => {
    state.value = filters.state;
    turn.value = filters.turn;
  };
  show(board.filters);
  addEventListener("popstate", () => {
    const place = parsePlace(location.pathname, location.hash);
    show(place.filters);
    board.follow(place);
  });
  const apply = (): void => board.filter({ state: state.value, turn: turn.value as Filters["turn"] });
  state.addEventListener("change", apply);
  turn.addEventListener("change", apply);
  find("filters", HTMLFormElement).addEventListener("submit", (event) => event.preventDefault());
}

const KEYS: readonly Key[] = [
  { keys: ["j", "ArrowDown"], means: "Next task", act: () => atDesk(({ board }) => board.move(1)) },
  { keys: ["k", "ArrowUp"], means: "Previous task", act: () => atDesk(({ board }) => board.move(-1)) },
  { keys: ["n"], means: "New task", act: () => atDesk(({ board }) => board.create()) },
  { keys: ["m"], means: "Workflow", act: () => atDesk(({ board }) => board.showMoves()) },
  { keys: ["t"], means: "Connect Telegram", act: () => atDesk(({ telegram }) => telegram.open()) },
  { keys: ["u"], means: "Switch user", act: () => void changePerson("") },
  { keys: ["?"], means: "Show these shortcuts", act: () => find("keys", HTMLDialogElement).showModal() },
];

wireThemeButton();
wireSkipLink();
find("help", HTMLButtonElement).addEventListener("click", () => find("keys", HTMLDialogElement).showModal());
find("reader", HTMLButtonElement).addEventListener("click", () => void changePerson(""));
describeKeys(find("keys-list", HTMLElement), KEYS, "Close the form, then the task");
listenToKeys(KEYS, () => desk?.board.leave());
const kept = session.kept();
if (kept) {
  find("reader-name", HTMLElement).textContent = kept.user;
  const token = tokenOf(kept);
  turns.move(() => begin(new Api(root, token), token));
} else {
  await changePerson("");
}
