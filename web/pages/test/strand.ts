/** A strand in memory behind a `fetch`, for tests of the reading: pages both ways, and a stream that tests feed. */

import { Feed } from "@aftercommit/client";

import { cursorOf, type Log } from "../logs/line.js";

export function log(seq: number): Log {
  return {
    event_id: `e${seq}`,
    ts: new Date(Date.UTC(2025, 10, 12) + seq * 1000).toISOString(),
    seq,
    source: seq % 2 === 0 ? "backend" : "frontend",
    service: "case-api",
    level: "INFO",
    message: `line ${seq}`,
    investigation_id: "INV-1",
    schema_version: 1,
  };
}

export class Strand {
  logs: Log[];
  /** Holds back the answers to pages until it is called. */
  held: Promise<void> = Promise.resolve();
  /** So many of the newest lines do not match, and the newest page stops looking after them. */
  blind = 0;
  readonly asked: URLSearchParams[] = [];
  #streams = new Set<ReadableStreamDefaultController<Uint8Array>>();
  #waiting: (() => void)[] = [];

  constructor(count: number) {
    this.logs = Array.from({ length: count }, (_, index) => log(index + 1));
  }

  get feed(): Feed<Log> {
    return new Feed<Log>("http://h/logs", { fetch: (input, init) => this.#fetch(new URL(String(input)), init ?? {}) });
  }

  /** Resolves when somebody reads the stream. */
  async streaming(): Promise<void> {
    if (this.#streams.size === 0) await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  append(count: number): void {
    const fresh = Array.from({ length: count }, (_, index) => log(this.logs.length + index + 1));
    this.logs.push(...fresh);
    for (const stream of this.#streams) send(stream, fresh);
  }

  /** A log that the server cannot show, which the stream tells. */
  withhold(): void {
    const { event_id, ts, seq } = log(this.logs.length + 1);
    const untold = { event_id, ts, seq, withheld: "item failed" } as Log;
    this.logs.push(untold);
    for (const stream of this.#streams) send(stream, [untold]);
  }

  async #fetch(address: URL, init: RequestInit): Promise<Response> {
    if (address.pathname.endsWith("/stream")) return this.#stream(init);
    this.asked.push(address.searchParams);
    // The server looks first and answers later: what comes in between is not on the page.
    const page = this.#page(address.searchParams);
    await this.held;
    init.signal?.throwIfAborted();
    return page;
  }

  #page(query: URLSearchParams): Response {
    const limit = Number(query.get("limit"));
    const [after, before, from] = ["afterCursor", "beforeCursor", "fromTime"].map((name) => query.get(name));
    let logs = this.logs.slice(-limit);
    if (before) logs = this.logs.filter((each) => each.seq < numberIn(before)).slice(-limit);
    if (from) logs = this.logs.filter((each) => each.ts >= from).slice(0, limit);
    if (after) logs = this.logs.filter((each) => each.seq > numberIn(after)).slice(0, limit);
    if (this.blind > 0 && !after && !before && !from) {
      const previousCursor = cursorOf(this.logs[this.logs.length - this.blind] as Log);
      const headers = { "X-Next-Cursor": cursorOf(this.logs.at(-1) as Log) };
      return Response.json({ logs: [], pagination: { nextCursor: null, hasMore: false, previousCursor } }, { headers });
    }
    const last = logs.at(-1);
    const pagination = {
      nextCursor: last && !before ? cursorOf(last) : null,
      hasMore: !before && last !== undefined && last !== this.logs.at(-1),
      ...(before && { previousCursor: logs[0] && logs[0].seq > 1 ? cursorOf(logs[0]) : null }),
    };
    return Response.json({ logs, pagination });
  }

  #stream(init: RequestInit): Response {
    const at = numberIn(new Headers(init.headers).get("last-event-id") ?? "");
    let mine: ReadableStreamDefaultController<Uint8Array>;
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        mine = controller;
        this.#streams.add(controller);
        controller.enqueue(new TextEncoder().encode(": hello\n\n"));
        send(
          controller,
          this.logs.filter((each) => each.seq > at),
        );
      },
      cancel: () => void this.#streams.delete(mine),
    });
    init.signal?.addEventListener("abort", () => {
      if (this.#streams.delete(mine)) mine.error(new DOMException("over", "AbortError"));
    });
    for (const resolve of this.#waiting.splice(0)) resolve();
    return new Response(body, { headers: { "content-type": "text/event-stream" } });
  }
}

function numberIn(cursor: string): number {
  return Number(/#(\d+)$/.exec(cursor)?.[1] ?? 0);
}

function send(stream: ReadableStreamDefaultController<Uint8Array>, logs: readonly Log[]): void {
  for (const each of logs) {
    stream.enqueue(new TextEncoder().encode(`event: log\nid: ${cursorOf(each)}\ndata: ${JSON.stringify(each)}\n\n`));
  }
}
