// The same conversation in lines of JSON as protocol.py, for peers that run on Node.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

export const require = createRequire(join(process.argv[2], "package.json"));
export const ORDERS = `
  create table if not exists orders (
    id bigint generated always as identity primary key, customer text not null, total integer not null,
    placed_at timestamptz not null default now()
  )`;
export const PLACE = {
  name: "place",
  text: "insert into orders (customer, total) values ($1, $2)",
  values: ["customer-17", 12500],
};
const WARM_UP = 5;

export const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const cpu = () => process.resourceUsage().userCPUTime / 1e6 + process.resourceUsage().systemCPUTime / 1e6;

/** Host, port, user and database of a connection URI whose host is a socket folder. */
export function place(dsn) {
  const url = new URL(dsn.replace("@/", "@socket/"));
  return {
    user: decodeURIComponent(url.username),
    database: decodeURIComponent(url.pathname.slice(1)),
    host: url.searchParams.get("host") ?? url.hostname,
    port: Number(url.searchParams.get("port") ?? url.port ?? 5432),
  };
}

/** Counts what a handler was called for. */
export class Tally {
  constructor(expected) {
    this.left = expected;
    this.finished = new Promise((resolve) => (this.resolve = resolve));
  }

  one() {
    this.left -= 1;
    if (this.left === 0) this.resolve();
  }
}

/** The moments at which a handler was called, in the order of the calls. */
export class Arrivals {
  constructor() {
    this.times = [];
    this.waiting = [];
  }

  one() {
    const now = performance.now();
    const waiter = this.waiting.shift();
    if (waiter) waiter(now);
    else this.times.push(now);
  }

  next() {
    if (this.times.length) return Promise.resolve(this.times.shift());
    return new Promise((resolve) => this.waiting.push(resolve));
  }
}

/** What Node peers share: connections of `pg`, and the loops around them. */
export class Program {
  constructor(dsn, payload) {
    this.dsn = dsn;
    this.payload = payload;
    this.place = place(dsn);
    this.connections = [];
    this.pg = require("pg");
  }

  async connect() {
    const client = new this.pg.Client(this.place);
    await client.connect();
    return client;
  }

  async connected(count) {
    while (this.connections.length < count) this.connections.push(await this.connect());
    return this.connections.slice(0, count);
  }

  /** One transaction; the moment just before its COMMIT was sent. */
  async transact(client, event) {
    await client.query("begin");
    await client.query(PLACE);
    if (event) await this.add(client);
    const started = performance.now();
    await client.query("commit");
    return started;
  }

  async publish({ seconds, connections, event }) {
    const clients = await this.connected(connections);
    const until = performance.now() + seconds * 1000;
    const repeat = async (client) => {
      let done = 0;
      while (performance.now() < until) {
        await this.transact(client, event);
        done += 1;
      }
      return done;
    };
    const counts = await Promise.all(clients.map(repeat));
    return counts.reduce((sum, count) => sum + count, 0);
  }

  async bulk({ calls, events }) {
    const [client] = await this.connected(1);
    for (let call = 0; call < calls; call += 1) {
      await client.query("begin");
      await this.addMany(client, events);
      await client.query("commit");
    }
    return calls * events;
  }

  /** Handle a backlog: from the start of the worker until the database has nothing undone. */
  async drain({ events }) {
    const tally = new Tally(events);
    const [client] = await this.connected(1);
    const [before, started] = [cpu(), performance.now()];
    const stop = await this.working(tally, "drain");
    await tally.finished;
    while ((await client.query(this.undone)).rows[0].exists) await sleep(0.002);
    const found = { events, seconds: (performance.now() - started) / 1000, client_cpu: cpu() - before };
    await stop();
    return found;
  }

  /** Single events while the worker is asleep. */
  async latency(ask) {
    const arrivals = new Arrivals();
    const stop = await this.working(arrivals, "latency");
    await sleep(0.5);
    const found = await this.singles(arrivals, ask);
    await stop();
    return found;
  }

  async singles(arrivals, { singles, rest }) {
    const [client] = await this.connected(1);
    const found = [];
    for (let number = 0; number < singles + WARM_UP; number += 1) {
      await sleep(rest);
      const started = await this.transact(client, true);
      found.push((await arrivals.next()) - started);
    }
    return { milliseconds: found.slice(WARM_UP) };
  }

  async answer(ask) {
    if (ask.do === "drain") return this.drain(ask);
    if (ask.do === "latency") return this.latency(ask);
    if (ask.do !== "publish" && ask.do !== "bulk") throw new Error(`${ask.do} is not a request that this program knows`);
    const [before, started] = [cpu(), performance.now()];
    const events = await this[ask.do](ask);
    return { events, seconds: (performance.now() - started) / 1000, client_cpu: cpu() - before };
  }

  async close() {
    for (const client of this.connections) await client.end();
  }
}

/** Answer on standard output until standard input ends. Whatever a peer logs goes to standard error. */
export async function serve(program) {
  console.log = console.info = console.debug = console.warn = console.error;
  let running = null;
  for await (const line of createInterface({ input: process.stdin })) {
    const ask = JSON.parse(line);
    let told;
    if (running === null) {
      running = new program(ask.dsn, ask.payload);
      await running.open();
      told = { settings: running.settings, tables: running.tables };
    } else {
      told = await running.answer(ask);
    }
    process.stdout.write(`${JSON.stringify(told)}\n`);
  }
  await running?.close();
  process.exit(0);
}
