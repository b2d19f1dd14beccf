// graphile-worker, with a local queue and completions in batches.

import { ORDERS, Program, require, serve } from "./protocol.mjs";

const TASK = "order_placed";
const SILENT = () => () => {};

class GraphileWorker extends Program {
  settings = "concurrentJobs=24, localQueue.size=2000, completeJobBatchDelay=0";
  tables = ["orders", "graphile_worker._private_jobs"];
  undone = "select exists (select from graphile_worker._private_jobs)";

  async open() {
    this.library = require("graphile-worker");
    this.logger = new this.library.Logger(SILENT);
    await this.library.runMigrations({ pgPool: this.pool(2), logger: this.logger });
    await (await this.connected(1))[0].query(ORDERS);
  }

  pool(max) {
    const pool = new this.pg.Pool({ ...this.place, max });
    pool.on("error", () => {});
    pool.on("connect", (client) => client.on("error", () => {}));
    return pool;
  }

  add(client) {
    return client.query({
      name: "add",
      text: "select graphile_worker.add_job($1, $2::json)",
      values: [TASK, JSON.stringify(this.payload)],
    });
  }

  addMany(client, events) {
    const jobs = JSON.stringify(Array.from({ length: events }, () => ({ identifier: TASK, payload: this.payload })));
    const text =
      "select from graphile_worker.add_jobs(array(select json_populate_recordset(null::graphile_worker.job_spec, $1::json)))";
    return client.query({ name: "add_many", text, values: [jobs] });
  }

  async working(told, purpose) {
    const pool = this.pool(12);
    const batches = purpose === "drain" ? { localQueue: { size: 2000 }, completeJobBatchDelay: 0 } : {};
    const preset = { worker: { concurrentJobs: 24, pollInterval: 2000, maxPoolSize: 12, ...batches } };
    const taskList = { [TASK]: async () => told.one() };
    const runner = await this.library.run({
      preset,
      taskList,
      pgPool: pool,
      logger: this.logger,
      noHandleSignals: true,
    });
    return async () => {
      await runner.stop();
      await pool.end();
    };
  }
}

await serve(GraphileWorker);
