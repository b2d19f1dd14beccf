/** The task board: asks who works here, reads the address, and wires the page. */

import { element, find, wireSkipLink, wireThemeButton } from "@aftercommit/ui";

import { describeKeys, listenToKeys, type Key } from "../shared/keys.js";
import { rootOfSite } from "../shared/root.js";
import { sampleOf } from "../shared/sample.js";
import { Session, type Reading } from "../shared/session.js";
import { Api, ApiError, type TokenSource } from "./api.js";
import { Board } from "./board.js";
import { Directory } from "./directory.js";
import { parsePlace, STATES, type Filters } from "./place.js";
import { TelegramDialog } from "./telegram.js";
import { label } from "./words.js";

const root = rootOfSite();
const session = new Session({
  key: "aftercommit.reading.tasks",
  root,
  system: "tasks",
  question: "Who are you?",
  needed: "Paste a token whose user is the number of a person in the task tracker.",
  begin: "Begin",
});
const RETRY_FIRST = 2;
const RETRY_LONGEST = 60;

/** Another person means another page: nothing of the one before may stay. */
async function changePerson(why: string): Promise<void> {
  const chosen = await session.ask(find("readers", HTMLDialogElement), why, session.kept());
  if (chosen) location.reload();
  else if (!session.kept()) sayInstead("Who works here has to be known first.");
}

function tokenOf(first: Reading): TokenSource {
  let reading = first;
  return async (refused) => {
    if (refused) reading = await session.renewed(reading);
    return reading.token;
  };
}

/** Who is who and how tasks move; asked for until there is an answer. Null when this person is not known. */
async function known(api: Api): Promise<{ directory: Directory; machine: Awaited<ReturnType<Api["machine"]>> } | null> {
  let wait = RETRY_FIRST;
  for (;;) {
    try {
      const [me, users, roles, machine] = await Promise.all([api.me(), api.users(), api.roles(), api.machine()]);
      return { directory: new Directory(me, users, roles), machine };
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401) {
        void changePerson(error.message);
        return null;
      }
      if (error.status === 403 || error.status === 404) {
        sayInstead(error.message);
        return null;
      }
      find("empty", HTMLElement).textContent = `${error.message} The page tries again by itself.`;
      await new Promise((resolve) => setTimeout(resolve, wait * 1000));
      wait = Math.min(wait * 2, RETRY_LONGEST);
    }
  }
}

function sayInstead(message: string): void {
  const other = element("button", { class: "button main", type: "button" }, "Choose who you are");
  other.addEventListener("click", () => void changePerson(""));
  find("empty", HTMLElement).replaceChildren(element("p", { role: "alert" }, message), other);
}

async function work(reading: Reading): Promise<void> {
  find("reader-name", HTMLElement).textContent = reading.user;
  const token = tokenOf(reading);
  const api = new Api(root, token);
  const found = await known(api);
  if (!found) return;
  const { directory, machine } = found;
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
  await board.start();
}

function dressFor({ me }: Directory): void {
  const roles = me.roles.map(({ name }) => name).join(", ");
  find("reader-name", HTMLElement).textContent = me.name;
  find("reader", HTMLElement).title = `${me.name}${roles === "" ? "" : ` (${roles})`}: work as somebody else`;
  find("events-title", HTMLElement).textContent = `What ${me.name} hears of`;
  for (const id of ["new", "how", "connect"]) find(id, HTMLButtonElement).disabled = false;
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
  const keys = keysFor(board, telegram);
  describeKeys(find("keys-list", HTMLElement), keys, "Close the form, then the task");
  listenToKeys(keys, () => board.leave());
}

/** A link to a task opens it here, unless it is asked for elsewhere. */
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
    void board.follow(place);
  });
  const apply = (): void => void board.filter({ state: state.value, turn: turn.value as Filters["turn"] });
  state.addEventListener("change", apply);
  turn.addEventListener("change", apply);
  find("filters", HTMLFormElement).addEventListener("submit", (event) => event.preventDefault());
}

function keysFor(board: Board, telegram: TelegramDialog): readonly Key[] {
  return [
    { keys: ["j", "ArrowDown"], means: "Next task", act: () => board.move(1) },
    { keys: ["k", "ArrowUp"], means: "Task before", act: () => board.move(-1) },
    { keys: ["n"], means: "New task", act: () => board.create() },
    { keys: ["m"], means: "How tasks move", act: () => board.showMoves() },
    { keys: ["t"], means: "Connect Telegram", act: () => telegram.open() },
    { keys: ["u"], means: "Work as somebody else", act: () => void changePerson("") },
    { keys: ["?"], means: "These keys", act: () => find("keys", HTMLDialogElement).showModal() },
  ];
}

wireThemeButton();
wireSkipLink();
find("help", HTMLButtonElement).addEventListener("click", () => find("keys", HTMLDialogElement).showModal());
find("reader", HTMLButtonElement).addEventListener("click", () => void changePerson(""));
const kept = session.kept();
if (kept) await work(kept);
else await changePerson("");
