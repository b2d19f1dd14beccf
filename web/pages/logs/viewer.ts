/** Connects the parts of the log viewer: passes the user's actions to the reader, and draws the results. */

import { type Feed, type FeedError } from "@aftercommit/client";
import { element, find, toast } from "@aftercommit/ui";

import { rootOfSite } from "../shared/root.js";
import { Turns } from "../shared/turns.js";
import { copied, Details } from "./details.js";
import { Instead } from "./instead.js";
import { asText, cursorOf, dayOf, type Line, type Log } from "./line.js";
import { Lines } from "./lines.js";
import { List } from "./list.js";
import { formatAddress, queryOf, type Address, type Filters, type Place } from "./place.js";
import { Reader } from "./reader.js";
import { Search } from "./search.js";
import { Status } from "./status.js";

const SPEAK_EVERY = 10_000;
const RETRY_FIRST = 2;
const RETRY_LONGEST = 60;

export interface ViewerEvents {
  /** The investigation exists and may be read. Called once. */
  begun(): void;
  /** The server does not accept this token. */
  unauthorised(error: FeedError): void;
  /** The filters were changed from here. */
  filtered(filters: Filters): void;
}

export class Viewer {
  readonly lines: Lines;
  readonly search = new Search();
  readonly reader: Reader;
  readonly details: Details;
  readonly #turns = new Turns();
  readonly #list: List;
  readonly #status: Status;
  readonly #instead = new Instead();
  #filters: Filters;
  #active: number | undefined;
  #retry = RETRY_FIRST;
  #nextTry: ReturnType<typeof setTimeout> | undefined;
  /** Reading has ended until the user does something. */
  #stopped = false;
  #begun = false;
  #unspoken = 0;
  #spokenAt = 0;

  constructor(
    feed: Feed<Log>,
    readonly address: Address,
    readonly events: ViewerEvents,
    most?: number,
  ) {
    this.#filters = address.filters;
    this.lines = new Lines(most);
    this.reader = new Reader(feed, this.lines, {
      changed: (shift) => this.#changed(shift),
      stood: () => this.#stood(),
      state: (state) => this.#status.connection.show(state),
      heard: (within) => this.#status.connection.heard(within),
      unreachable: (why) => this.#status.connection.doubt(why),
      live: (count) => this.#speak(count),
      notice: toast,
      refused: (error) => this.#refused(error),
    });
    this.#list = new List(find("list", HTMLElement), find("canvas", HTMLElement), this.lines, () => this.#marks(), {
      scrolled: () => this.#scrolled(),
      resized: () => this.#resized(),
      chosen: (line) => this.choose(line),
      drawn: () => this.#drawn(),
    });
    this.#status = new Status();
    this.details = new Details(find("details", HTMLElement), {
      share: (line) => this.share(line),
      close: () => this.closeDetails(),
    });
    find("fresh", HTMLButtonElement).addEventListener("click", () => this.follow());
    find("beginning", HTMLButtonElement).addEventListener("click", () => this.toBeginning());
  }

  start(): void {
    this.#turns.move(() => this.#startAt(this.address.place));
  }

  // --- user actions: moves start at once; actions on a line wait until the last move is done

  filter(filters: Filters): void {
    this.#turns.move(() => {
      const place = this.reader.following ? null : this.#placeOf(this.#list.top);
      this.#filters = filters;
      this.events.filtered(filters);
      return this.#startAt(place);
    });
  }

  follow(): void {
    this.#turns.move(() => this.#follow());
  }

  toggleFollow(): void {
    this.#turns.act(() => (this.reader.following ? this.reader.pause() : this.#follow()));
  }

  goToTime(time: number): void {
    this.#turns.move(async () => {
      const found = await this.reader.goTo(time);
      if (found === "nowhere" || (found === "fetched" && this.reader.following)) return;
      this.#goTo(Math.min(this.lines.indexOfTime(time), this.lines.length - 1));
    });
  }

  toBeginning(): void {
    this.#turns.move(async () => {
      if (await this.reader.toBeginning()) this.#goTo(0);
    });
  }

  /** Select another line, relative to the selected one. */
  move(by: number): void {
    this.#turns.act(() => {
      const from = this.activeLine;
      if (!from) return void this.#lineToActOn();
      const next = this.lines.indexOfSeq(from.log.seq) + by;
      this.#goTo(Math.max(0, Math.min(this.lines.length - 1, next)));
    });
  }

  /** Scroll by one screen. */
  turn(by: 1 | -1): void {
    this.move(by * (this.#list.rowsInView - 1));
  }

  choose(line: Line): void {
    if (line.log.seq === this.#active && this.details.open) {
      this.closeDetails();
      return;
    }
    this.#active = line.log.seq;
    if (this.reader.following) this.reader.pause();
    this.details.show(line);
    this.#list.draw();
  }

  openDetails(): void {
    this.#withLine((line) => this.details.show(line));
  }

  /** Close the panel, or else do `otherwise`. */
  leave(otherwise: () => void): void {
    this.#turns.move(() => (this.details.open ? this.closeDetails() : otherwise()));
  }

  closeDetails(): void {
    const inside = this.details.panel.contains(document.activeElement);
    this.details.hide();
    if (inside) this.#list.viewport.focus();
  }

  /** Search. If the text is unchanged, step to the next or previous match instead. */
  look(wanted: string, by: 1 | -1 | 0 = 0): void {
    this.#turns.act(() => {
      if (by !== 0 && wanted.toLowerCase() === this.search.wanted) this.#step(by);
      else this.#look(wanted);
    });
  }

  step(by: 1 | -1): void {
    this.#turns.act(() => this.#step(by));
  }

  copyActive(): void {
    this.#withLine((line) => void copied("Line", asText(line)));
  }

  shareActive(): void {
    this.#withLine((line) => this.#share(line));
  }

  share(line: Line): void {
    this.#turns.act(() => this.#share(line));
  }

  get activeLine(): Line | undefined {
    return this.#active === undefined ? undefined : this.lines.at(this.lines.indexOfSeq(this.#active));
  }

  // --- implementation

  async #startAt(place: Place | null): Promise<void> {
    const arrived = await this.reader.start(this.#filters, place);
    if (arrived && place && !this.reader.following) this.#goToSeq(place.line);
  }

  async #follow(): Promise<void> {
    this.#active = undefined;
    await this.reader.follow();
    this.#settle();
  }

  #withLine(act: (line: Line) => void | Promise<void>): void {
    this.#turns.act(() => {
      const line = this.#lineToActOn();
      return line && act(line);
    });
  }

  /** The selected line. If there is none, select the newest while following, or else the top one. */
  #lineToActOn(): Line | undefined {
    if (!this.activeLine) this.#goTo(this.reader.following ? this.lines.length - 1 : this.#list.top);
    if (!this.activeLine) toast("There are no lines");
    return this.activeLine;
  }

  #look(wanted: string): void {
    const near = this.#active ?? this.lines.at(this.#list.top)?.log.seq ?? 0;
    this.search.start(wanted, this.lines, near);
    if (this.search.current !== undefined) this.#goToSeq(this.search.current);
    this.#list.draw();
  }

  #step(by: 1 | -1): void {
    const seq = this.search.step(by);
    if (seq !== undefined) this.#goToSeq(seq);
    else toast(this.search.wanted === "" ? "Enter a search text first" : "No loaded line matches");
  }

  /** Put the address of a line into the clipboard and the address bar. */
  async #share(line: Line): Promise<void> {
    // A place is the cursor of the line before it.
    await this.reader.settled;
    if (line === this.lines.first) await this.reader.loadOlder();
    const index = this.lines.indexOfSeq(line.log.seq);
    const isHere = this.lines.at(index)?.log.seq === line.log.seq;
    // No line matches before the first one.
    const isFirst = index === 0 && this.reader.older === "beginning";
    const alone = { after: isFirst ? null : cursorOf(line.log), line: line.log.seq };
    const place = isHere && !isFirst ? this.#placeOf(index) : alone;
    history.replaceState(
      null,
      "",
      `${location.pathname}${location.search}${formatAddress({ filters: this.#filters, place })}`,
    );
    // Not awaited: the browser may ask the user first.
    void copied("Link", location.href);
  }

  // --- drawing

  #goToSeq(seq: number): void {
    this.#goTo(Math.min(this.lines.indexOfSeq(seq), this.lines.length - 1));
  }

  #goTo(index: number, where: "nearest" | "middle" = "nearest"): void {
    const line = this.lines.at(index);
    if (!line) return;
    this.#active = line.log.seq;
    if (this.reader.following) this.reader.pause();
    if (this.details.open) this.details.show(line);
    this.#list.reveal(index, where);
  }

  /** A place is the cursor of the line before it; the first line has none. */
  #placeOf(index: number): { after: string | null; line: number } | null {
    const line = this.lines.at(index);
    if (!line) return null;
    const before = this.lines.at(index - 1);
    if (!before && line.log.seq !== 1) return { after: cursorOf(line.log), line: line.log.seq };
    return { after: before ? cursorOf(before.log) : null, line: line.log.seq };
  }

  #marks(): { wanted: string; match: number | undefined; active: number | undefined } {
    return { wanted: this.search.wanted, match: this.search.current, active: this.#active };
  }

  get #isFiltered(): boolean {
    return Object.keys(queryOf(this.#filters)).length > 0;
  }

  #changed(shift: number | null): void {
    if (shift === null) {
      this.#active = undefined;
      this.#retry = RETRY_FIRST;
      clearTimeout(this.#nextTry);
      this.#instead.allow();
      this.#stopped = false;
      if (!this.#begun) this.events.begun();
      this.#begun = true;
      this.search.start(this.search.wanted, this.lines, 0);
    } else {
      this.search.update(this.lines);
      if (!this.reader.following) this.#list.shifted(shift);
    }
    this.#settle();
  }

  /** Scroll to the end while following; otherwise only redraw. */
  #settle(): void {
    if (this.reader.following) this.#list.toEnd();
    else this.#list.draw();
  }

  /** The panel makes the list smaller; keep the selected line in view. */
  #resized(): void {
    if (this.reader.following || !this.details.open || this.#active === undefined) this.#settle();
    else this.#list.reveal(this.lines.indexOfSeq(this.#active));
  }

  #scrolled(): void {
    if (this.#list.atEnd && this.reader.attached) {
      if (!this.reader.following && this.#active === undefined) void this.reader.follow();
    } else if (this.reader.following && !this.#list.atEnd) {
      this.reader.pause();
    }
    this.#fill();
    if (this.#list.nearEnd && !this.reader.attached) void this.reader.loadNewer();
  }

  #drawn(): void {
    const top = this.lines.at(this.#list.top);
    find("day", HTMLElement).textContent = top ? dayOf(top.time) : "Time";
    this.#status.edge(this.reader, this.#list.atBeginning);
    this.#status.range(this.reader, this.#isFiltered);
    this.#status.found(this.search);
    this.#fill();
  }

  #stood(): void {
    this.#status.following(this.reader, this.#stopped);
    const looking = this.reader.busy === "first" || this.reader.busy === "older";
    this.#instead.none(this.lines.length === 0 && !looking, this.#isFiltered);
    this.#list.draw();
  }

  /** Load more lines when the view reaches an end of the list. */
  #fill(): void {
    if (this.#list.atBeginning) void this.reader.loadOlder();
    if (this.#list.atEnd) void this.reader.loadNewer();
  }

  #refused(error: FeedError): void {
    this.#instead.refuse();
    this.#stopped = error.status >= 400 && error.status < 500 && error.status !== 429;
    this.#status.following(this.reader, this.#stopped);
    this.#status.connection.show({ name: "stopped", wait: null, error });
    if (error.status === 401) {
      this.events.unauthorised(error);
    } else if (error.status === 403) {
      const other = element("button", { class: "button main", type: "button" }, "Switch user");
      other.addEventListener("click", () => this.events.unauthorised(error));
      this.#instead.refuse({ title: "Not allowed", text: error.message, more: other });
    } else if (error.status === 404) {
      const others = element("a", { href: rootOfSite().href }, "All investigations");
      this.#instead.refuse({ title: "Not found", text: error.message, more: element("p", {}, others) });
    } else if (this.#stopped) {
      this.#instead.refuse({ title: "Cannot read this investigation", text: error.message });
    } else {
      this.#tryAgain(error);
    }
  }

  #tryAgain(error: FeedError): void {
    const wait = Math.max(this.#retry, error.retryAfter ?? 0);
    this.#retry = Math.min(this.#retry * 2, RETRY_LONGEST);
    this.#status.connection.show({ name: "waiting", wait, error });
    const text = `${error.message} Retrying automatically.`;
    if (this.lines.length === 0) this.#instead.refuse({ title: "Could not load the log", text });
    clearTimeout(this.#nextTry);
    this.#nextTry = setTimeout(() => this.start(), wait * 1000);
  }

  /** Tell screen readers how many lines arrived, at most every ten seconds. */
  #speak(count: number): void {
    this.#unspoken += count;
    const now = performance.now();
    if (this.#unspoken === 0 || now - this.#spokenAt < SPEAK_EVERY) return;
    this.#spokenAt = now;
    find("spoken", HTMLElement).textContent = `${this.#unspoken} new ${this.#unspoken === 1 ? "line" : "lines"}`;
    this.#unspoken = 0;
  }
}
