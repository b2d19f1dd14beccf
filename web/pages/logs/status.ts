/** The texts around the list: connection, loaded range, search result. */

import { find } from "@aftercommit/ui";

import { Connection } from "../shared/connection.js";
import { type Reader } from "./reader.js";
import { type Search } from "./search.js";

const number = (value: number): string => value.toLocaleString("en");
const lines = (value: number): string => `${number(value)} ${value === 1 ? "line" : "lines"}`;

export class Status {
  readonly connection = new Connection({ one: "line", many: "lines" });
  readonly #follow = find("follow", HTMLButtonElement);
  readonly #fresh = find("fresh", HTMLButtonElement);
  readonly #range = find("range", HTMLElement);
  readonly #found = find("found", HTMLElement);
  readonly #edge = find("older", HTMLElement);

  /** `stopped`: reading has ended. */
  following({ following, attached, fresh }: Reader, stopped: boolean): void {
    const paused = fresh > 0 ? `Paused · ${number(fresh)} new` : "Paused";
    this.#follow.disabled = stopped;
    this.#follow.setAttribute("aria-pressed", String(following && !stopped));
    this.#follow.textContent = stopped ? "Not following" : following ? "Following" : paused;
    this.#fresh.hidden = stopped || following || (attached && fresh === 0);
    const many = `${number(fresh)} new ${fresh === 1 ? "line" : "lines"} ↓`;
    this.#fresh.textContent = fresh > 0 ? many : "Newest lines ↓";
  }

  edge({ busy }: Reader, atBeginning: boolean): void {
    this.#edge.hidden = busy !== "older" || !atBeginning;
  }

  range({ lines: loaded, newestSeq }: Reader, filtered: boolean): void {
    const first = loaded.first?.log.seq;
    const last = loaded.last?.log.seq;
    if (first === undefined || last === undefined) this.#range.textContent = "";
    else if (filtered)
      this.#range.textContent = `${lines(loaded.length)} loaded, from ${number(first)} to ${number(last)}`;
    else this.#range.textContent = `Lines ${number(first)} to ${number(last)} of ${number(Math.max(last, newestSeq))}`;
  }

  found(search: Search): void {
    this.#found.textContent =
      search.wanted === "" ? "" : search.count === 0 ? "none" : `${number(search.place)}/${number(search.count)}`;
  }
}
