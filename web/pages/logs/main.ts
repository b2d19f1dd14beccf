/** The log viewer: reads the address, asks for a user, and connects the page's controls. */

import { Feed } from "@aftercommit/client";
import { find, wireSkipLink, wireThemeButton } from "@aftercommit/ui";

import { describeKeys, listenToKeys, type Key } from "../shared/keys.js";
import { rootOfSite } from "../shared/root.js";
import { Session, type Reading } from "../shared/session.js";
import { type Log } from "./line.js";
import { formatAddress, parseAddress, type Filters } from "./place.js";
import { Toolbar } from "./toolbar.js";
import { Viewer } from "./viewer.js";

const id = decodeURIComponent(location.pathname.replace(/\/$/, "").split("/").at(-1) ?? "");
const address = parseAddress(location.hash);
const root = rootOfSite();
const investigation = new URL(`api/v1/investigations/${encodeURIComponent(id)}`, root);
const session = new Session({
  key: "aftercommit.reading",
  root,
  system: "investigations",
  question: "Who are you?",
  needed: "Paste a token that may read this investigation.",
  begin: "Continue",
});

function dressPage(): void {
  find("title", HTMLElement).textContent = id;
  document.title = `${id} · log`;
  find("zone", HTMLElement).textContent = `Times in ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
  wireThemeButton();
  wireSkipLink();
}

/** Switching users reloads the page, so that nothing of the previous user's data stays. */
async function changeReader(why: string, now: Reading | null): Promise<void> {
  const chosen = await session.ask(find("readers", HTMLDialogElement), why, now);
  if (chosen) location.reload();
}

/** The user's token; a new one after a refusal. */
function tokenOf(first: Reading): (refused: boolean) => Promise<string> {
  let reading = first;
  return async (refused) => {
    if (refused) reading = await session.renewed(reading);
    return reading.token;
  };
}

/** Show the investigation's title in the heading and the tab. The log works without it. */
async function tellTitle(token: string): Promise<void> {
  try {
    const response = await fetch(investigation, { headers: { authorization: `Bearer ${token}` }, cache: "no-store" });
    if (!response.ok) return;
    const { title } = (await response.json()) as { title?: string };
    if (!title) return;
    find("about", HTMLElement).textContent = title;
    find("about", HTMLElement).title = title;
    document.title = `${id}: ${title} · log`;
  } catch {
    // No answer, or not JSON.
  }
}

function view(reading: Reading): void {
  find("reader-name", HTMLElement).textContent = reading.user;
  const toolbar = new Toolbar(address.filters);
  const token = tokenOf(reading);
  const feed = new Feed<Log>(new URL(`${investigation.href}/logs`), { event: "log", token });
  const viewer = new Viewer(feed, address, {
    begun: () => void token(false).then(tellTitle),
    unauthorised: (error) => void changeReader(error.message, reading),
    filtered: (filters) => remember(filters),
  });
  toolbar.connect(viewer);
  const keys = keysFor(viewer, toolbar);
  describeKeys(find("keys-list", HTMLElement), keys, "Close the panel, clear the search");
  listenToKeys(keys, () => viewer.leave(() => toolbar.clearSearch()));
  viewer.start();
}

function remember(filters: Filters): void {
  history.replaceState(null, "", `${location.pathname}${location.search}${formatAddress({ filters, place: null })}`);
}

function keysFor(viewer: Viewer, toolbar: Toolbar): readonly Key[] {
  return [
    { keys: ["j", "ArrowDown"], means: "Next line", act: () => viewer.move(1) },
    { keys: ["k", "ArrowUp"], means: "Previous line", act: () => viewer.move(-1) },
    { keys: ["PageDown"], means: "One screen down", act: () => viewer.turn(1) },
    { keys: ["PageUp"], means: "One screen up", act: () => viewer.turn(-1) },
    { keys: ["g", "Home"], means: "First line", act: () => viewer.toBeginning() },
    { keys: ["G", "End"], means: "Newest lines, and follow", act: () => viewer.follow() },
    { keys: ["Enter"], means: "Line details", act: () => viewer.openDetails() },
    { keys: ["f"], means: "Follow or pause", act: () => viewer.toggleFollow() },
    { keys: ["/"], means: "Search in the loaded lines", act: () => toolbar.focusSearch() },
    { keys: ["n"], means: "Next match", act: () => viewer.step(1) },
    { keys: ["N"], means: "Previous match", act: () => viewer.step(-1) },
    { keys: ["t"], means: "Go to a time", act: () => toolbar.askTime() },
    { keys: ["c"], means: "Copy the line", act: () => viewer.copyActive() },
    { keys: ["s"], means: "Copy a link to the line", act: () => viewer.shareActive() },
    { keys: ["?"], means: "Show these shortcuts", act: () => find("keys", HTMLDialogElement).showModal() },
  ];
}

async function main(): Promise<void> {
  dressPage();
  find("help", HTMLButtonElement).addEventListener("click", () => find("keys", HTMLDialogElement).showModal());
  const kept = session.kept();
  find("reader", HTMLButtonElement).addEventListener("click", () => void changeReader("", session.kept()));
  if (kept) view(kept);
  else await changeReader("", null);
}

// A link to another line of the same investigation, pasted into this tab.
addEventListener("hashchange", () => location.reload());

void main();
