"use strict";
/* graphile-worker, on Node, in an environment of its own: the verbs of side.py, answered in the same way.
 *
 * It deletes a job that succeeds. So `work` answers with what a table would have kept: when the first of its jobs was
 * locked and when the last had been deleted, by the server's clock, and which numbers it ran.
 */

const fs = require("node:fs");
const { EventEmitter } = require("node:events");
const { setTimeout: pause } = require("node:timers/promises");

// Its documentation measures without a line of log for each success; it reads this as it is loaded.
process.env.NO_LOG_SUCCESS = "1";

const { Client } = require("pg");
const { Logger, makeWorkerUtils, run, runMigrations, runOnce } = require("graphile-worker");

const { PEER_URL: URL, PEER_STAMPS: STAMPS } = process.env;
const WARM_UP = 20;
const HELLO = -1;
const AT_ONCE = 1000;

const logger = new Logger(() => (level, message) => {
  if (level === "error") process.stderr.write(`${message}\n`);
});

/** The instant on the clock of stamps.py, in seconds. */
function now() {
  return Number(process.hrtime.bigint()) / 1e9;
}

/** What one process has run: each number once, or `twice`. */
class Ran {
  constructor() {
    this.began = null;
    this.bits = Buffer.alloc(0);
    this.twice = 0;
  }

  note(number, lockedAt) {
    this.began ??= new Date(lockedAt).getTime() / 1000;
    const byte = number >> 3;
    const bit = 1 << (number & 7);
    if (byte >= this.bits.length) this.bits = Buffer.concat([this.bits, Buffer.alloc(Math.max(byte, 1 << 16))]);
    if (this.bits[byte] & bit) this.twice += 1;
    this.bits[byte] |= bit;
  }
}

function options(setting, more) {
  return {
    connectionString: URL,
    logger,
    ...more,
    preset: {
      worker: {
        concurrentJobs: setting.concurrency,
        maxPoolSize: setting.concurrency + 1,
        ...(setting.local_queue && { localQueue: { size: setting.local_queue } }),
        ...(setting.complete_delay !== undefined && {
          completeJobBatchDelay: setting.complete_delay,
          failJobBatchDelay: setting.complete_delay,
        }),
      },
    },
  };
}

function note({ number }) {
  fs.appendFileSync(STAMPS, `${number} ${now().toFixed(9)}\n`);
}

/** Run a worker until nothing is left, and answer. */
async function work(setting) {
  const ran = new Ran();
  const events = new EventEmitter();
  const clock = new Client({ connectionString: URL });
  await clock.connect();
  // Emitted when the batches of completions have been written.
  const released = new Promise((resolve) => events.once("pool:release", resolve)).then(() =>
    clock.query("SELECT extract(epoch FROM clock_timestamp())::float8 AS at"),
  );
  const noop = ({ number }, { job }) => ran.note(number, job.locked_at);
  await runOnce(options(setting, { events, taskList: { noop } }));
  const ended = (await released).rows[0].at;
  await clock.end();
  // The first number is the lowest bit of what Python reads as one hexadecimal integer.
  const numbers = Buffer.from(ran.bits).reverse().toString("hex");
  answer({ began: ran.began, ended, numbers, twice: ran.twice });
}

/** Run a worker until SIGTERM, which it handles itself. */
async function serve(setting) {
  const runner = await run(options(setting, { taskList: { noop() {}, note } }));
  await runner.promise;
}

async function enqueuing(use) {
  const utils = await makeWorkerUtils({ connectionString: URL, logger });
  try {
    await use(utils);
  } finally {
    await utils.release();
  }
}

async function fill(utils, count) {
  for (let start = 0; start < count; start += AT_ONCE) {
    const length = Math.min(AT_ONCE, count - start);
    const specs = Array.from({ length }, (_, n) => ({ identifier: "noop", payload: { number: start + n } }));
    await utils.addJobs(specs);
  }
}

async function enqueue(utils, count) {
  for (let number = 0; number < WARM_UP; number += 1) await utils.addJob("noop", { number });
  const began = now();
  for (let number = 0; number < count; number += 1) await utils.addJob("noop", { number });
  answer({ seconds: now() - began });
}

async function pickup(utils, count) {
  const returned = {};
  for (let number = 0; number < count; number += 1) {
    await pause(20 + Math.random() * 30);
    await utils.addJob("note", { number });
    returned[number] = now();
  }
  answer({ returned });
}

function answer(found) {
  process.stdout.write(`${JSON.stringify(found)}\n`);
}

const VERBS = {
  version: () => answer({ version: require("graphile-worker/package.json").version }),
  prepare: () => runMigrations({ connectionString: URL, logger }),
  fill: (count) => enqueuing((utils) => fill(utils, Number(count))),
  work: (setting) => work(JSON.parse(setting)),
  serve: (setting) => serve(JSON.parse(setting)),
  enqueue: (count) => enqueuing((utils) => enqueue(utils, Number(count))),
  hello: () => enqueuing((utils) => utils.addJob("note", { number: HELLO })),
  pickup: (count) => enqueuing((utils) => pickup(utils, Number(count))),
};

const [verb, argument] = process.argv.slice(2);
Promise.resolve()
  .then(() => VERBS[verb](argument))
  .catch((error) => {
    process.stderr.write(`${error.stack}\n${error.message}\n`);
    process.exitCode = 1;
  });
