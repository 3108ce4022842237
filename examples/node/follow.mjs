// Print the text of a job as it is made: `npm install`, then `node follow.mjs JOB_ID`.

import { decode } from "@msgpack/msgpack";
import { createClient, RESP_TYPES } from "redis";

const LAST = ["finished", "failed", "cancelled", "expired"];

/** The events of a job, past and live, in order and each once, to the last. */
async function* follow(client, queue, jobId) {
  const keys = `mlxq:{${queue}}`;
  const binary = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  const channel = client.duplicate();
  await channel.connect();
  let wake = () => {};
  try {
    await channel.subscribe(`${keys}:tokens:${jobId}`, () => wake(), true);
    for (let done = 0; ; ) {
      // The stream is the truth, the channel only says when to look again.
      const woken = new Promise((resolve) => {
        const timer = setTimeout(resolve, 1000);
        wake = () => (clearTimeout(timer), resolve());
      });
      const entries = await binary.xRange(`${keys}:events:${jobId}`, `${done + 1}-0`, "+");
      for (const { message } of entries) {
        const event = decode(message.e);
        done = event.seq + 1;
        yield event;
        if (LAST.includes(event.type)) return;
      }
      if (!done && !(await client.exists(`${keys}:job:${jobId}`))) {
        throw new Error(`queue ${queue} has no job ${jobId}`);
      }
      await woken;
    }
  } finally {
    wake();
    channel.destroy();
  }
}

const client = createClient({ url: process.env.MLXQ_REDIS_URL ?? "redis://127.0.0.1:6379/0" });
await client.connect();
try {
  for await (const event of follow(client, process.env.MLXQ_QUEUE ?? "captions", process.argv[2])) {
    if (event.type === "token") process.stdout.write(event.text);
    if (LAST.includes(event.type)) {
      process.stdout.write("\n");
      process.exitCode = event.type === "finished" ? 0 : 1;
    }
  }
} finally {
  client.destroy();
}
