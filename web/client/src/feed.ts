/** A feed at an address: ask for a page, open its stream. The token travels in a header and never in an address. */

import { readAnswer, refusal, silenceOf, unreachable, unreadable, type BodyKind, type Page } from "./answers.js";
import { pageAddress, streamAddress, type Filters, type Names, type Question } from "./requests.js";

/** A token, or a way to get one. It is asked with true when the last one was refused and another is needed. */
export type TokenSource = string | ((refused: boolean) => string | Promise<string>);

export interface FeedOptions {
  readonly token?: TokenSource;
  readonly body?: BodyKind;
  /** Names of the query parameters. */
  readonly names?: Names;
  /** Name of the events that carry an item; by default every name that is not reserved does. */
  readonly event?: string;
  /** Where the stream is; by default the feed's address with `/stream` behind it. */
  readonly stream?: string | URL;
  /** Another `fetch`, for proxies, tests and instrumentation. */
  readonly fetch?: typeof fetch;
}

/** At most one of `after`, `before` and `fromTime` says where the page lies; without any it is where the feed begins. */
export interface PageRequest {
  /** The page behind this cursor. */
  readonly after?: string | null;
  /** The page right before this cursor; its `previous` goes further back. `"end"`: the newest page. */
  readonly before?: string;
  /** The page that begins at this time. */
  readonly fromTime?: Date;
  readonly limit?: number;
  /** Filters of the feed, and other parameters that it knows. */
  readonly filters?: Filters;
  /** The tag of an earlier answer to the same question: null is answered when it still holds. */
  readonly etag?: string | null;
  readonly signal?: AbortSignal;
}

export interface OpenStream {
  readonly body: ReadableStream<Uint8Array>;
  /** Seconds that it may be silent; null where its server does not say how often it beats. */
  readonly silence: number | null;
}

export class Feed<Item> {
  readonly kind: BodyKind;
  readonly event: string | undefined;
  readonly #address: URL;
  readonly #stream: URL | null;
  readonly #names: Names;
  readonly #source: TokenSource | undefined;
  readonly #fetch: typeof fetch;
  #token: string | undefined;

  constructor(address: string | URL, options: FeedOptions = {}) {
    this.kind = options.body ?? "paged";
    this.event = options.event;
    this.#address = absolute(address);
    this.#stream = options.stream === undefined ? null : absolute(options.stream);
    this.#names = options.names ?? { cursor: "afterCursor", limit: "limit" };
    this.#source = options.token;
    this.#fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
  }

  /** Whether `refresh` can bring another token. */
  get canRefresh(): boolean {
    return typeof this.#source === "function";
  }

  /** Get another token, because the last one was refused. */
  async refresh(): Promise<void> {
    if (typeof this.#source === "function") this.#token = await this.#source(true);
  }

  /** One page; null when the tag still holds. Throws a FeedError for every other answer, and for none. */
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

  /** The stream after a cursor. Throws a FeedError when the answer is no stream. */
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
      // A redirection is not followed: the token is meant for this address.
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

/** A browser hides the status of a redirection that was not followed. */
function statusOf(response: Response): number {
  return response.type === "opaqueredirect" ? 302 : response.status;
}

/** In a browser an address may be relative to the page. */
function absolute(address: string | URL): URL {
  return new URL(address, typeof document === "undefined" ? undefined : document.baseURI);
}
