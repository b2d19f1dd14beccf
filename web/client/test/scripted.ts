/** A real HTTP server that does what a test tells it: each request is answered by the next line of a script. */

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { type AddressInfo } from "node:net";
import { type TestContext } from "node:test";

import { type Clock } from "../src/clock.js";

export interface Log {
  readonly event_id: string;
  readonly ts: string;
  readonly seq: number;
}

export function log(seq: number): Log {
  return { event_id: `e${seq}`, ts: "2025-11-12T10:30:05.123Z", seq };
}

export const cursor = (seq: number): string => `2025-11-12T10:30:05.123Z#${String(seq).padStart(3, "0")}`;

export const block = (seq: number): string => `event: log\nid: ${cursor(seq)}\ndata: ${JSON.stringify(log(seq))}\n\n`;

export type Answer = (request: IncomingMessage, response: ServerResponse) => void;

export interface Scripted {
  readonly address: string;
  readonly requests: IncomingMessage[];
}

/** Runs until the test is over. */
export async function serve(t: TestContext, answer: Answer): Promise<Scripted> {
  const requests: IncomingMessage[] = [];
  const server = createServer((request, response) => {
    requests.push(request);
    answer(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { address: `http://127.0.0.1:${port}/logs`, requests };
}

export function refuse(response: ServerResponse, status: number, body: object = {}): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

export function page(response: ServerResponse, logs: readonly Log[], next: string | null, etag = "none"): void {
  const pagination = { afterCursor: null, nextCursor: next, hasMore: false, limit: 100, returned: logs.length };
  response.writeHead(200, { "content-type": "application/json", etag }).end(JSON.stringify({ logs, pagination }));
}

export function openStream(response: ServerResponse): void {
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.write(": hello\n\n");
}

export const isStream = (request: IncomingMessage): boolean =>
  (request.url ?? "").split("?")[0]?.endsWith("/stream") === true;

/** The number after which the request wants to go on. */
export const after = (request: IncomingMessage): number =>
  Number(/#(\d+)$/.exec(String(request.headers["last-event-id"] ?? ""))?.[1] ?? 0);

/** A hundred times as fast as the world's. */
export const FAST: Clock = {
  now: () => performance.now() / 10,
  after: (seconds, call) => {
    const timer = setTimeout(call, seconds * 10);
    return () => clearTimeout(timer);
  },
};

/** Waits are short, and yet a busy machine has a real minute for whatever must come. */
export const QUICK = { clock: FAST, patience: { answer: 6000, firstBytes: 6000, silence: 6000 } };

/** Time that a test moves. `late`: how much too late timers are called. */
export function manual(): { clock: Clock; pass: (seconds: number, late?: number) => void } {
  let now = 0;
  let timers: { at: number; call: () => void }[] = [];
  const clock: Clock = {
    now: () => now,
    after: (seconds, call) => {
      const timer = { at: now + seconds, call };
      timers.push(timer);
      return () => void (timers = timers.filter((each) => each !== timer));
    },
  };
  const pass = (seconds: number, late = 0): void => {
    const end = now + seconds;
    for (;;) {
      const next = timers.filter(({ at }) => at + late <= end).sort((one, other) => one.at - other.at)[0];
      if (!next) break;
      timers = timers.filter((each) => each !== next);
      now = Math.max(now, next.at + late);
      next.call();
    }
    now = Math.max(now, end);
  };
  return { clock, pass };
}
