/**
 * A scripted fake of the server, for work on the pages and for tests of rare failures.
 *
 *   node dev/server.mjs STATIC [--port 8095] [--lines 2000] [--every 800]
 *
 * It keeps one strand in memory and serves pages, ETags and streams. `POST /control` with JSON controls it:
 * {"append": 5}  {"lines": 100000}  {"stream": "off" | "on" | "silent"}  {"cut": true}  {"page": 503 | null}
 * {"most": 3} limits the logs per page, as when the real server stops searching
 */

import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { extname, join, normalize } from "node:path";

const option = (name, otherwise) => {
  const at = process.argv.indexOf(`--${name}`);
  return at < 0 ? otherwise : Number(process.argv[at + 1]);
};
const STATIC = process.argv[2];
const LEVELS = ["DEBUG", "INFO", "WARN", "ERROR"];
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
const SERVICES = ["investigation-service", "enrichment-worker", "case-api", "react-app"];
const TEXTS = [
  "Investigation opened by analyst",
  "Fetched 42 indicators from the threat feed in 183 ms",
  "Retrying enrichment of 10.0.0.x, attempt 2 of 5: upstream answered 503",
  "Network request failed: POST /api/data took longer than 30000 ms and was given up; the form keeps what was typed",
  "Timeline rendered with 1,204 nodes",
  "Saved note\nsecond line of the note",
];

const state = { logs: [], stream: "on", page: null, most: Infinity, readers: new Set(), pages: 0 };

function append(count) {
  for (let made = 0; made < count; made += 1) {
    const seq = state.logs.length + 1;
    const service = SERVICES[seq % SERVICES.length];
    const level = seq % 17 === 0 ? "ERROR" : seq % 7 === 0 ? "WARN" : seq % 3 === 0 ? "DEBUG" : "INFO";
    state.logs.push({
      event_id: `00000000-0000-4000-8000-${String(seq).padStart(12, "0")}`,
      ts: new Date(Math.max(Date.now() - 3_600_000 + seq, Date.parse(state.logs.at(-1)?.ts ?? 0))).toISOString(),
      seq,
      source: service === "react-app" ? "frontend" : "backend",
      service,
      level,
      message: `${TEXTS[seq % TEXTS.length]} (${seq})`,
      investigation_id: "INV-123",
      correlation_id: `req-${Math.floor(seq / 10)}`,
      context: { user_id: `user-${seq % 9}`, attempt: seq % 5, client_ts: new Date().toISOString() },
      schema_version: 1,
    });
  }
  for (const reader of state.readers) reader();
}

const cursorOf = (log) => `${log.ts}#${String(log.seq).padStart(3, "0")}`;
const numberIn = (cursor) => Number(/#(\d+)$/.exec(cursor ?? "")?.[1] ?? 0);

function matcher(query) {
  const least = LEVELS.indexOf(query.get("minLevel") ?? "DEBUG");
  const [source, service] = [query.get("source"), query.get("service")];
  return (log) =>
    LEVELS.indexOf(log.level) >= least && (!source || log.source === source) && (!service || log.service === service);
}

function pageFor(query) {
  const limit = Math.min(Number(query.get("limit") ?? 100), state.most);
  const [after, before, from] = ["afterCursor", "beforeCursor", "fromTime"].map((name) => query.get(name));
  const matching = state.logs.filter(matcher(query));
  let logs;
  if (before) logs = matching.filter((log) => log.seq < numberIn(before)).slice(-limit);
  else if (from) logs = matching.filter((log) => log.ts >= from).slice(0, limit);
  else if (after) logs = matching.filter((log) => log.seq > numberIn(after)).slice(0, limit);
  else logs = matching.slice(-limit);
  const last = logs.at(-1);
  const hasMore = !before && last !== undefined && matching.at(-1) !== last;
  const previous = logs[0] && matching[0] !== logs[0] ? cursorOf(logs[0]) : null;
  const pagination = {
    afterCursor: after,
    nextCursor: last && !before ? cursorOf(last) : null,
    hasMore: hasMore || (before !== null && previous !== null),
    limit,
    returned: logs.length,
  };
  const back = { ...pagination, beforeCursor: before, previousCursor: previous };
  return { logs, pagination: before ? back : pagination };
}

function answer(response, status, body, headers = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(body === null ? undefined : JSON.stringify(body));
}

function poll(request, response, query) {
  state.pages += 1;
  if (state.page) return answer(response, state.page, { error: "unavailable", message: "The script says no." });
  const etag = `W/"${state.logs.length}-${query}"`;
  if (request.headers["if-none-match"] === etag) return answer(response, 304, null, { etag });
  return answer(response, 200, pageFor(query), { etag, "x-total-count": state.logs.length });
}

function stream(request, response, query) {
  if (state.stream === "off") return answer(response, 503, { error: "unavailable", message: "Streams are off." });
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
  response.write("retry: 1000\n: hello\n\n");
  const matches = matcher(query);
  let at = request.headers["last-event-id"] ? numberIn(request.headers["last-event-id"]) : state.logs.length;
  const push = () => {
    if (state.stream === "silent") return;
    if (state.stream === "cut") return response.destroy();
    const fresh = state.logs.slice(at).filter(matches);
    at = state.logs.length;
    response.write(fresh.map((log) => `event: log\nid: ${cursorOf(log)}\ndata: ${JSON.stringify(log)}\n\n`).join(""));
  };
  state.readers.add(push);
  response.on("close", () => state.readers.delete(push));
  push();
}

async function control(request, response) {
  let text = "";
  for await (const piece of request) text += piece;
  const { append: more, lines, stream: how, cut, page, most } = JSON.parse(text || "{}");
  if (lines !== undefined) state.logs.length = 0;
  if (how !== undefined) state.stream = how;
  if (page !== undefined) state.page = page;
  if (most !== undefined) state.most = most;
  if (lines) append(lines);
  if (more) append(more);
  if (cut) {
    const before = state.stream;
    state.stream = "cut";
    for (const reader of [...state.readers]) reader();
    state.stream = before;
  }
  answer(response, 200, { lines: state.logs.length, readers: state.readers.size, pages: state.pages });
}

function file(path, response) {
  const name =
    path === "/" ? "index.html" : /^\/investigations\/[^/]+$/.test(path) ? "investigation.html" : path.slice(1);
  try {
    const content = readFileSync(join(STATIC, normalize(`/${name}`)));
    const policy = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'";
    response.writeHead(200, {
      "content-type": TYPES[extname(name)] ?? "text/plain",
      "content-security-policy": policy,
    });
    response.end(content);
  } catch {
    answer(response, 404, { error: "not_found", message: `Not found: ${path}.` });
  }
}

const SAMPLE = {
  users: [
    { user: "ines", about: "Reads and writes every investigation.", token: "ines-token" },
    { user: "otto", about: "May read nothing, to show a refusal.", token: "otto-token" },
  ],
  systems: [
    {
      name: "investigations",
      title: "Investigation logs",
      about: "Frontends and backends write log lines into an investigation; authorised users read them live.",
      links: [{ href: "investigations/INV-123", label: "Live log of INV-123" }],
    },
  ],
};

const server = createServer((request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://localhost");
  if (pathname === "/control") return void control(request, response);
  if (pathname === "/sample.json") return answer(response, 200, SAMPLE);
  if (!pathname.startsWith("/api/")) return file(pathname, response);
  if (request.headers.authorization === "Bearer otto-token") {
    return answer(response, 403, {
      error: "forbidden",
      message: "Insufficient permissions for investigation:INV-123:read",
    });
  }
  if (request.headers.authorization !== "Bearer ines-token") {
    return answer(response, 401, { error: "unauthorized", message: "Missing or invalid authentication token" });
  }
  if (!pathname.includes("/logs")) {
    return answer(response, 200, { investigation_id: pathname.split("/").at(-1), title: "Saved notes get lost" });
  }
  return pathname.endsWith("/stream") ? stream(request, response, searchParams) : poll(request, response, searchParams);
});

append(option("lines", 2000));
const every = option("every", 800);
if (every > 0) setInterval(() => append(1), every);
server.listen(option("port", 8095), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/`));
