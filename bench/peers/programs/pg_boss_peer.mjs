// pg-boss, with eight workers that fetch large batches.

import { ORDERS, Program, require, serve } from "./protocol.mjs";

const QUEUE = "order_placed";
const WORKERS = 8;
const BATCH = 2000;

async function take(job, told) {
  told.one();
}

class PgBoss extends Program {
  settings = `${WORKERS} workers, batchSize=${BATCH}, pollingIntervalSeconds=0.5`;
  tables = ["orders", "pgboss.job"];
  undone = `select exists (select from pgboss.job where name = '${QUEUE}' and state < 'completed')`;

  async open() {
    const library = require("pg-boss");
    this.library = library.PgBoss ?? library.default ?? library;
    this.boss = new this.library({ ...this.place, max: WORKERS + 2, supervise: false, schedule: false });
    this.boss.on("error", (problem) => console.error(problem));
    await this.boss.start();
    await this.boss.createQueue(QUEUE);
    await (await this.connected(1))[0].query(ORDERS);
  }

  through(client) {
    return { executeSql: (text, values) => client.query(text, values) };
  }

  add(client) {
    return this.boss.send(QUEUE, this.payload, { db: this.through(client) });
  }

  addMany(client, events) {
    const jobs = Array.from({ length: events }, () => ({ name: QUEUE, data: this.payload }));
    return this.boss.insert(jobs, { db: this.through(client) });
  }

  async working(told, purpose) {
    const options = { batchSize: BATCH, pollingIntervalSeconds: 0.5 };
    const handle = async (jobs) => {
      for (const job of jobs) await take(job, told);
    };
    const workers = purpose === "drain" ? WORKERS : 1;
    for (let number = 0; number < workers; number += 1) await this.boss.work(QUEUE, options, handle);
    return () => this.boss.offWork(QUEUE);
  }

  async close() {
    await super.close();
    await this.boss.stop({ graceful: false });
  }
}

await serve(PgBoss);
