/** The log viewer: reads the address, asks who is reading, and wires the page. */

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
  question: "Who is reading?",
  needed: "Paste a token that may read this investigation.",
  begin: "Read",
});

function dressPage(): void {
  find("title", HTMLElement).textContent = id;
  document.title = `${id} · log`;
  find("zone", HTMLElement).textContent = `Times in ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
  wireThemeButton();
  wireSkipLink();
}

/** Another reader means another page: nothing of the one before may stay. */
async function changeReader(why: string, now: Reading | null): Promise<void> {
  const chosen = await session.ask(find("readers", HTMLDialogElement), why, now);
  if (chosen) location.reload();
}

/** The token of whoever reads; once one was refused, the fresh one. */
function tokenOf(first: Reading): (refused: boolean) => Promise<string> {
  let reading = first;
  return async (refused) => {
    if (refused) reading = await session.renewed(reading);
    return reading.token;
  };
}

/** What the investigation is about, in its heading and on the tab. Without that, its lines can be read all the same. */
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
    // No answer, or none that is JSON.
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
    { keys: ["k", "ArrowUp"], means: "Line before", act: () => viewer.move(-1) },
    { keys: ["PageDown"], means: "A screen on", act: () => viewer.turn(1) },
    { keys: ["PageUp"], means: "A screen back", act: () => viewer.turn(-1) },
    { keys: ["g", "Home"], means: "The very first line", act: () => viewer.toBeginning() },
    { keys: ["G", "End"], means: "Follow the newest lines", act: () => viewer.follow() },
    { keys: ["Enter"], means: "All about the line", act: () => viewer.openDetails() },
    { keys: ["f"], means: "Follow or pause", act: () => viewer.toggleFollow() },
    { keys: ["/"], means: "Search in the loaded lines", act: () => toolbar.focusSearch() },
    { keys: ["n"], means: "Next match", act: () => viewer.step(1) },
    { keys: ["N"], means: "Match before", act: () => viewer.step(-1) },
    { keys: ["t"], means: "Go to a time", act: () => toolbar.askTime() },
    { keys: ["c"], means: "Copy the line", act: () => viewer.copyActive() },
    { keys: ["s"], means: "Copy a link to the line", act: () => viewer.shareActive() },
    { keys: ["?"], means: "These keys", act: () => find("keys", HTMLDialogElement).showModal() },
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

// A link to another place in the same investigation, pasted into this tab.
addEventListener("hashchange", () => location.reload());

void main();
