// promptfoo's own hooks tell the driver when it is set up, and what became of each test; the folder is the mailbox.
import { appendFileSync, existsSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const folder = process.env.PEER_FOLDER;
const POLL_MS = 2;
let began, spent;

export async function beforeAll() {
  writeFileSync(`${folder}/ready`, "");
  while (!existsSync(`${folder}/go`)) await sleep(POLL_MS);
  began = process.hrtime.bigint();
  spent = process.cpuUsage();
}

export async function afterEach({ result }) {
  appendFileSync(`${folder}/outcomes`, JSON.stringify(result.error ?? result.response?.error ?? null) + "\n");
}

export async function afterAll() {
  const wall = Number(process.hrtime.bigint() - began) / 1e9;
  const { user, system } = process.cpuUsage(spent);
  writeFileSync(`${folder}/done`, JSON.stringify({ wall_s: wall, cpu_s: (user + system) / 1e6 }));
}
