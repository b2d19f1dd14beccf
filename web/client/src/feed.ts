/** A feed at an address: requests pages and opens the stream. The token is sent in a header, never in an address. */

import { readAnswer, refusal, silenceOf, unreachable, unreadable, type BodyKind, type Page } from "./answers.js";
import { pageAddress, streamAddress, type Filters, type Names, type Question } from "./requests.js";

/** A token, or a function that returns one. It is called with true when the server refused the last token. */
export type TokenSource = string | ((refused: boolean) => string | Promise<string>);

export interface FeedOptions {
  readonly token?: TokenSource;
  readonly body?: BodyKind;
  /** The cursor before all events: a follower that finds an empty feed continues from here, so that it misses nothing.
   * By default number 0 as feeds with this body write it; null if the feed has no such cursor. */
  readonly beginning?: string | null;
  /** Names of the query parameters. */
  readonly names?: Names;
  /** Event name of items on the stream; by default every name that is not reserved. */
  readonly event?: string;
  /** Address of the stream; by default the feed's address plus `/stream`. */
  readonly stream?: string | URL;
  /** Another `fetch`, for proxies, tests and instrumentation. */
  readonly fetch?: typeof fetch;
}

/** Set at most one of `after`, `before` and `fromTime`. Without any, the page is where the feed begins. */
export interface PageRequest {
  /** The page after this cursor. */
  readonly after?: string | null;
  /** The page right before this cursor; continue with its `previous`. `"end"`: the newest page. */
  readonly before?: string;
  /** The page that begins at this time. */
  readonly fromTime?: Date;
  readonly limit?: number;
  /** Filters and other parameters of the feed. */
  readonly filters?: Filters;
  /** The ETag of an earlier answer to the same request. The result is null if nothing changed. */
  readonly etag?: string | null;
  readonly signal?: AbortSignal;
}

export interface OpenStream {
  readonly body: ReadableStream<Uint8Array>;
  /** Seconds of silence before it counts as lost; null if the server announces no heartbeat interval. */
  readonly silence: number | null;
}

const BEGINNINGS: Record<BodyKind, string> = { paged: "1970-01-01T00:00:00.000Z#000", array: "0" };

export class Feed<Item> {
  readonly kind: BodyKind;
  readonly event: string | undefined;
  readonly beginning: string | null;
  readonly #address: URL;
  readonly #stream: URL | null;
  readonly #names: Names;
  readonly #source: TokenSource | undefined;
  readonly #fetch: typeof fetch;
  #token: string | undefined;

  constructor(address: string | URL, options: FeedOptions = {}) {
    this.kind = options.body ?? "paged";
    this.event = options.event;
    this.beginning = options.beginning !== undefined ? options.beginning : BEGINNINGS[this.kind];
    this.#address = absolute(address);
    this.#stream = options.stream === undefined ? null : absolute(options.stream);
    this.#names = options.names ?? { cursor: "afterCursor", limit: "limit" };
    this.#source = options.token;
    this.#fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
  }

  /** Whether `refresh` can get another token. */
  get canRefresh(): boolean {
    return typeof this.#source === "function";
  }

  /** Get another token after the server refused the last one. */
  async refresh(): Promise<void> {
    if (typeof this.#source === "function") this.#token = await this.#source(true);
  }

  /** One page; null if the ETag still matches. Throws a FeedError for every other answer, and without one. */
  async page(request: PageRequest = {}): Promise<Page<Item> | null> {
    const question: Question = {
      cursor: request.after,
      before: request.before,
      fromTime: request.fromTime?.toISOString(),
      limit: request.limit,
      filters: request.filters,
    };
    const headers: Record<string, string> = { accept: "application/json" };
    if (request.etag) headers["if-none-match"] = request.etag;
    const response = await this.#ask(pageAddress(this.#address, this.#names, question), headers, request.signal);
    const text = await this.#text(response, request.signal);
    const asked = { after: request.after ?? null, back: request.before !== undefined };
    return readAnswer<Item>(this.kind, asked, statusOf(response), response.headers, text);
  }

  /** Open the stream after a cursor. Throws a FeedError if the answer is not a stream. */
  async open(after: string | null, filters: Filters, signal: AbortSignal): Promise<OpenStream> {
    const address = streamAddress(this.#address, this.#stream, this.#names, { filters });
    const headers: Record<string, string> = { accept: "text/event-stream" };
    if (after !== null) headers["last-event-id"] = after;
    const response = await this.#ask(address, headers, signal);
    const type = response.headers.get("content-type") ?? "";
    if (response.status === 200 && response.body && type.startsWith("text/event-stream")) {
      return { body: response.body, silence: silenceOf(response.headers.get("x-heartbeat-interval")) };
    }
    const status = statusOf(response);
    if (status !== 200) throw refusal(status, response.headers, await this.#text(response, signal));
    await response.body?.cancel();
    throw unreadable(`its type is "${type}"`);
  }

  async #ask(address: URL, headers: Record<string, string>, signal?: AbortSignal): Promise<Response> {
    this.#token ??= typeof this.#source === "function" ? await this.#source(false) : this.#source;
    if (this.#token !== undefined) headers["authorization"] = `Bearer ${this.#token}`;
    try {
      // Redirects are not followed: the token is meant for this address only.
      return await this.#fetch(address, { headers, redirect: "manual", ...(signal && { signal }) });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw unreachable(error);
    }
  }

  async #text(response: Response, signal?: AbortSignal): Promise<string> {
    try {
      return await response.text();
    } catch (error) {
      if (signal?.aborted) throw error;
      throw unreachable(error);
    }
  }
}

/** Browsers hide the status of a redirect that was not followed. */
function statusOf(response: Response): number {
  return response.type === "opaqueredirect" ? 302 : response.status;
}

/** In a browser, an address may be relative to the page. */
function absolute(address: string | URL): URL {
  return new URL(address, typeof document === "undefined" ? undefined : document.baseURI);
}
