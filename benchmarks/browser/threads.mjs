// CPU time of a browser's threads, on Linux.
import fs from "node:fs";

/** Nanoseconds that the threads of the browser's processes have run, by process type and thread name. */
export function threadTimes(mark = "chrom") {
  const times = {};
  for (const pid of fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const command = fs.readFileSync(`/proc/${pid}/cmdline`, "utf8");
      if (!command.includes(mark)) continue;
      const type = /--type=([\w-]+)/.exec(command)?.[1] ?? "browser";
      for (const task of fs.readdirSync(`/proc/${pid}/task`)) {
        const own = fs.readFileSync(`/proc/${pid}/task/${task}/comm`, "utf8").trim();
        const name = `${type}:${task === pid ? "main" : own}`;
        times[name] =
          (times[name] ?? 0) + Number(fs.readFileSync(`/proc/${pid}/task/${task}/schedstat`, "utf8").split(" ")[0]);
      }
    } catch {
      // it ended meanwhile
    }
  }
  return times;
}
