/** The board: sends the user's actions to the server, and shows tasks and events as they change. */

import { FeedError, type FollowState } from "@aftercommit/client";
import { find, toast } from "@aftercommit/ui";

import { Connection } from "../shared/connection.js";
import { Turns } from "../shared/turns.js";
import { ApiError, type Api, type Fields, type TokenSource } from "./api.js";
import { CreateDialog } from "./create.js";
import { Detail } from "./detail.js";
import { type Directory } from "./directory.js";
import { EventsPanel } from "./events.js";
import { TaskList } from "./list.js";
import { Live } from "./live.js";
import { type Action, type Machine, type Task, type TaskEvent, type WithheldEvent } from "./model.js";
import { openMoves } from "./moves.js";
import { formatPlace, type Filters, type Place } from "./place.js";
import { Refresher } from "./refresher.js";
import { Tasks } from "./tasks.js";
import { label, turnWords } from "./words.js";

export interface BoardOptions {
  readonly root: URL;
  readonly api: Api;
  readonly token: TokenSource;
  readonly directory: Directory;
  readonly machine: Machine;
  readonly place: Place;
  /** The server no longer accepts the token. */
  unauthorised(message: string): void;
}

/** Milliseconds until a failed load is retried. */
const AGAIN = 5000;

type Pane = "list" | "detail" | "events";

export class Board {
  readonly #options: BoardOptions;
  readonly #tasks = new Tasks();
  readonly #list: TaskList;
  readonly #detail: Detail;
  readonly #events: EventsPanel;
  readonly #live: Live;
  readonly #create: CreateDialog;
  readonly #connection = new Connection({ one: "event", many: "events" });
  readonly #refresher = new Refresher((id) => this.#reload(id));
  readonly #empty = find("empty", HTMLElement);
  readonly #more = find("more", HTMLButtonElement);
  readonly #earlier = find("earlier", HTMLButtonElement);
  #place: Place;
  #before: number | null = null;
  /** Tasks that an event named and that are being reloaded. */
  readonly #heard = new Set<number>();
  /** Number of the latest request for the list; answers to earlier requests are ignored. */
  #asked = 0;
  /** Message in place of the list while it loads or after an error; empty when it is loaded. */
  #wanting = "";
  readonly #turns = new Turns();

  constructor(options: BoardOptions) {
    this.#options = options;
    this.#place = options.place;
    const turn = (task: Task): string => turnWords(task, options.machine, options.directory);
    const hrefOf = (task: number): string => this.#href({ ...this.#place, task });
    this.#list = new TaskList({ hrefOf, turn });
    this.#detail = new Detail(options.directory, { turn, act: (task, ...done) => this.#act(task, ...done) });
    this.#events = new EventsPanel(options.directory, hrefOf);
    this.#create = new CreateDialog(options.directory, {
      create: (task, key) => options.api.create(task, key),
      made: (task, left) => this.#made(task, left),
    });
    this.#live = new Live(options.api.events, options.token, {
      older: (events, more) => this.#older(events, more),
      came: (events) => this.#came(events),
      state: (state) => this.#connection.show(state),
      withheld: (event) => this.#events.addNew([event]),
      heard: (within) => this.#connection.heard(within),
      gap: () => this.load(),
      refused: (error) => this.#refused(error),
    });
    options.api.unreachable = (why) => this.#connection.doubt(why);
    this.#more.addEventListener("click", () => void this.#loadMore());
    this.#earlier.addEventListener("click", () => void this.#earlierEvents());
  }

  start(): void {
    void this.#live.start();
    this.load();
    this.go(this.#place);
  }

  // --- navigation

  get filters(): Filters {
    return this.#place.filters;
  }

  /** Open a task; the browser's "back" closes it again. */
  open(task: number | null): void {
    const before = this.#place.task;
    const place = { ...this.#place, task };
    if (task !== before) history.pushState(null, "", this.#href(place));
    this.go(place);
    if (task !== null) this.#detail.focus();
    else if (before !== null) this.#turns.act(() => this.#focusInList(before));
  }

  /** Put the focus back on this task, unless the user has opened another one meanwhile. */
  #focusInList(task: number): void {
    if (this.#place.task === null) this.#list.focus(task);
  }

  /** Show what is at this place. */
  go(place: Place): void {
    this.#place = place;
    this.pane(place.task === null ? "list" : "detail");
    this.#drawList();
    if (place.task === null) {
      document.title = "Tasks";
      this.#detail.say("No task selected", "Select a task from the list, or create one.");
      return;
    }
    const known = this.#tasks.get(place.task);
    if (known) this.#show(known);
    else if (this.#detail.shown !== place.task) this.#detail.say("Loading …");
    this.#refresher.ask(place.task);
  }

  /** The user went back or forward in the browser. */
  follow(place: Place): void {
    const before = this.#place.filters;
    this.go(place);
    if (place.filters.state !== before.state) this.load();
  }

  filter(filters: Filters): void {
    const before = this.#place.filters;
    this.#place = { ...this.#place, filters };
    history.replaceState(null, "", this.#href(this.#place));
    if (filters.state !== before.state) this.load();
    else this.#drawList();
  }

  /** On narrow screens, show only this pane. */
  pane(name: Pane): void {
    document.body.dataset["pane"] = name;
    for (const each of ["list", "events"]) {
      find(`to-${each}`, HTMLButtonElement).setAttribute(
        "aria-pressed",
        String((name === "events") === (each === "events")),
      );
    }
    if (name === "events") this.#events.seen();
  }

  /** Move to the next or previous task. */
  move(by: 1 | -1): void {
    this.#turns.act(() => this.#list.move(by));
  }

  create(): void {
    this.#create.open();
  }

  showMoves(): void {
    const open = this.#place.task === null ? undefined : this.#tasks.get(this.#place.task);
    openMoves(this.#options.machine, open?.state ?? null);
  }

  /** Close the form, or else the task. */
  leave(): void {
    if (!this.#detail.closeForm() && this.#place.task !== null) this.open(null);
  }

  #href(place: Place): string {
    return new URL(formatPlace(place), this.#options.root).href;
  }

  // --- the list

  /** From the beginning. */
  load(): void {
    const asked = (this.#asked += 1);
    this.#tasks.doubt();
    this.#before = null;
    this.#wanting ||= "Loading …";
    this.#drawList();
    this.#turns.move(() => this.#loadPage(asked));
  }

  async #loadMore(): Promise<void> {
    this.#more.disabled = true;
    await this.#loadPage(this.#asked);
    this.#more.disabled = false;
  }

  async #loadPage(asked: number): Promise<void> {
    try {
      const page = await this.#options.api.tasks(this.#place.filters.state, this.#before);
      if (asked !== this.#asked) return;
      for (const task of page.tasks) this.#tasks.put(task);
      if (this.#wanting !== "") this.#tasks.settle();
      this.#wanting = "";
      this.#before = page.next_before;
      this.#drawList();
    } catch (error) {
      if (asked === this.#asked)
        this.#trouble(
          error,
          (text) => this.#say((this.#wanting = text)),
          () => this.load(),
        );
    }
  }

  #drawList(): void {
    const shown = this.#tasks.shown(this.#place.filters);
    this.#list.draw(shown, this.#place.task);
    const narrowed = this.#place.filters.state !== "" || this.#place.filters.turn !== "";
    const none = narrowed ? "No tasks match these filters." : "No tasks yet. Create one, or wait until one is assigned to you.";
    this.#say(shown.length > 0 ? "" : this.#wanting || none);
    this.#more.hidden = this.#before === null;
  }

  #say(text: string): void {
    this.#empty.textContent = text;
    this.#empty.hidden = text === "";
  }

  // --- a task

  #show(task: Task): void {
    document.title = `${task.title} · Tasks`;
    this.#detail.show(task);
  }

  /** A task changed: update the list and the details. */
  #took(task: Task): void {
    if (!this.#tasks.put(task)) return;
    this.#drawList();
    if (this.#heard.delete(task.task_id)) this.#list.markFresh(task.task_id);
    if (task.task_id === this.#place.task) this.#show(task);
  }

  async #reload(id: number): Promise<void> {
    try {
      this.#took(await this.#options.api.task(id));
      if (id === this.#place.task) this.#detail.showHistory(id, await this.#options.api.history(id));
    } catch (error) {
      this.#trouble(
        error,
        (text, status) => this.#lost(id, text, status),
        () => this.#refresher.ask(id),
      );
    }
  }

  /** The task does not exist, is hidden from this user, or could not be loaded. */
  #lost(id: number, text: string, status: number): void {
    if (status === 403 || status === 404) this.#tasks.remove(id);
    this.#drawList();
    if (id !== this.#place.task) return;
    if (status === 403) this.#detail.say("You cannot see this task", text);
    else if (status === 404) this.#detail.say("Task not found", text);
    else if (this.#detail.shown === id) this.#detail.tell(`This may be out of date. ${text}`);
    else this.#detail.say("Could not load the task", text);
  }

  async #act(id: number, action: Action, fields: Fields): Promise<void> {
    try {
      this.#took(await this.#options.api.act(id, action, fields));
      toast(`${label(action)}: done`);
    } finally {
      // Also after a refusal: then the page shows an old state.
      this.#refresher.ask(id);
    }
  }

  /** A task was created. If the user has closed the dialog, do not navigate away from what they do now. */
  #made(task: Task, left: boolean): void {
    this.#took(task);
    if (!left) this.open(task.task_id);
    toast(left ? `“${task.title}” was created` : "Task created");
  }

  // --- activity

  #older(events: readonly (TaskEvent | WithheldEvent)[], more: boolean): void {
    this.#events.addOlder(events);
    this.#earlier.hidden = !more;
  }

  async #earlierEvents(): Promise<void> {
    try {
      await this.#live.older();
    } catch (error) {
      if (!(error instanceof FeedError)) throw error;
      toast(error.message);
    }
  }

  #came(events: readonly TaskEvent[]): void {
    this.#events.addNew(events);
    const lost = new Set(events.filter((event) => this.#isLost(event)).map((event) => event.task_id));
    for (const id of lost) this.#lost(id, "It was reassigned to someone else.", 403);
    for (const id of new Set(events.map((event) => event.task_id))) {
      if (lost.has(id)) continue;
      this.#heard.add(id);
      this.#refresher.ask(id);
    }
  }

  /** Whether this event takes the task out of the user's sight; then it is not reloaded. */
  #isLost({ task_id, payload }: TaskEvent): boolean {
    const { me } = this.#options.directory;
    const left = payload["previous_assignee_user_id"] === me.user_id;
    const known = this.#tasks.get(task_id);
    if (!left || !known || known.creator_user_id === me.user_id) return false;
    return !me.roles.some(({ role_id }) => known.supervisor_role_ids.includes(role_id));
  }

  #refused(error: FeedError): void {
    this.#connection.show({ name: "stopped", wait: null, error } satisfies FollowState);
    if (error.status === 401) this.#options.unauthorised(error.message);
  }

  /** Show an error; retry later when the error may pass. */
  #trouble(error: unknown, tell: (text: string, status: number) => void, again: () => void): void {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) this.#options.unauthorised(error.message);
    else tell(error.message, error.status);
    if (error.status === 0 || error.status === 429 || error.status >= 500) setTimeout(again, AGAIN);
  }
}
