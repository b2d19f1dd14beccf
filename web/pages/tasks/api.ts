/** The HTTP API of the task tracker. Every failed request throws an ApiError with the server's message. */

import {
  type Action,
  type Entry,
  type LinkCode,
  type Machine,
  type NewTask,
  type Person,
  type Role,
  type Task,
  type TaskPage,
} from "./model.js";

export type TokenSource = (refused: boolean) => Promise<string>;
export type Fields = Readonly<Record<string, string | number>>;

const PAGE = 50;
const MOST_PEOPLE = 1000;

export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    /** The HTTP status; 0 when there was no answer. */
    readonly status: number,
    message: string,
    readonly details: Readonly<Record<string, unknown>> = {},
  ) {
    super(message);
  }
}

interface Question {
  readonly method?: "GET" | "POST";
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

interface HistoryPage {
  readonly entries: readonly Entry[];
  readonly next_after: number | null;
}

export class Api {
  readonly #root: URL;
  readonly #token: TokenSource;
  /** Called when a request gets no answer. */
  unreachable: (why: string) => void = () => {};

  /** `root`: where the site begins. */
  constructor(root: URL, token: TokenSource) {
    this.#root = root;
    this.#token = token;
  }

  get events(): URL {
    return new URL("tasks/me/events", this.#root);
  }

  me(): Promise<Person> {
    return this.#ask<Person>("tasks/me");
  }

  /** Users by number, up to a limit that still fits a menu. */
  async users(): Promise<readonly Person[]> {
    const found: Person[] = [];
    for (let after: number | null = 0; after !== null && found.length < MOST_PEOPLE;) {
      const page: { users: Person[]; next_after: number | null } = await this.#ask(`tasks/users?after=${after}`);
      found.push(...page.users);
      after = page.next_after;
    }
    return found;
  }

  async roles(): Promise<readonly Role[]> {
    return (await this.#ask<{ roles: Role[] }>("tasks/roles")).roles;
  }

  machine(): Promise<Machine> {
    return this.#ask<Machine>("tasks/machine");
  }

  tasks(state: string, before: number | null): Promise<TaskPage> {
    const query = new URLSearchParams({ limit: String(PAGE) });
    if (state !== "") query.set("state", state);
    if (before !== null) query.set("before", String(before));
    return this.#ask<TaskPage>(`tasks?${query}`);
  }

  task(id: number): Promise<Task> {
    return this.#ask<Task>(`tasks/${id}`);
  }

  async history(id: number): Promise<readonly Entry[]> {
    const found: Entry[] = [];
    let after: number | null = 0;
    while (after !== null) {
      const page: HistoryPage = await this.#ask<HistoryPage>(`tasks/${id}/history?limit=200&after=${after}`);
      found.push(...page.entries);
      after = page.next_after;
    }
    return found;
  }

  /** Create a task. Requests with the same key create one task. */
  create(task: NewTask, key: string): Promise<Task> {
    return this.#ask<Task>("tasks", { method: "POST", body: task, headers: { "idempotency-key": key } });
  }

  act(id: number, action: Action, fields: Fields): Promise<Task> {
    return this.#ask<Task>(`tasks/${id}/${action.replaceAll("_", "-")}`, { method: "POST", body: fields });
  }

  async linkCode(): Promise<LinkCode> {
    const response = await this.#answer("tasks/me/link-codes", { method: "POST" });
    const made = readAnswer<Omit<LinkCode, "lifetime">>(response.status, await response.text());
    return { ...made, lifetime: lifetimeOf(made.expires_at, response.headers.get("date"), Date.now()) };
  }

  async #ask<Answer>(path: string, question: Question = {}): Promise<Answer> {
    const response = await this.#answer(path, question);
    return readAnswer<Answer>(response.status, await response.text());
  }

  async #answer(path: string, question: Question): Promise<Response> {
    const response = await this.#send(path, question, await this.#token(false));
    return response.status === 401 ? this.#send(path, question, await this.#token(true)) : response;
  }

  async #send(path: string, { method = "GET", body, headers }: Question, token: string): Promise<Response> {
    const sent: Record<string, string> = { accept: "application/json", authorization: `Bearer ${token}`, ...headers };
    if (body !== undefined) sent["content-type"] = "application/json";
    const text = body === undefined ? null : JSON.stringify(body);
    try {
      const address = new URL(path, this.#root);
      return await fetch(address, { method, headers: sent, body: text, cache: "no-store", redirect: "error" });
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      const said = `Cannot reach the server: ${reason}`;
      this.unreachable(said);
      throw new ApiError(0, said);
    }
  }
}

/** Parse an answer, or throw its error. Pure. */
export function readAnswer<Answer>(status: number, text: string): Answer {
  const body = parsed(text);
  if (status >= 200 && status < 300 && body !== undefined) return body as Answer;
  const said = (typeof body === "object" && body !== null ? body : {}) as Record<string, unknown>;
  const message = typeof said["message"] === "string" ? said["message"] : `The server responded with status ${status}.`;
  const details = said["details"];
  throw new ApiError(status, message, typeof details === "object" && details !== null ? { ...details } : {});
}

/** The Date header has whole seconds and servers update it once a second, so it is at most this old (milliseconds). */
const DATE_AGE = 2000;

/** Milliseconds from an answer until a time, both by the server's clock, because this machine's may be wrong. Errs on
 * the short side. Pure. */
export function lifetimeOf(until: string, date: string | null, now: number): number {
  const told = Date.parse(date ?? "");
  return Date.parse(until) - (Number.isNaN(told) ? now : told + DATE_AGE);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}
