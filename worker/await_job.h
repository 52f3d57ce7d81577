#ifndef EPS_WORKER_AWAIT_JOB_H_
#define EPS_WORKER_AWAIT_JOB_H_

#include <chrono>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/ids.h"

namespace eps {

// Waits until `server` answers and holds a job other than `done`, so that workers and servers that
// are started by hand may start in any order. A `done` of 0 is no job. Logs what it waits for at
// most every 10 s. Unavailable, with what was missing and the key, after `timeout`; 0 waits for
// ever. Cancelled once `interrupted` returns true. Blocks; asks `interrupted` between two looks at
// the server, each of at most 7 s.
absl::Status AwaitJob(const std::string& server, JobId done, std::chrono::milliseconds timeout,
                      const std::function<bool()>& interrupted);

// Returns `failed`, which ended a worker, with the exit code that `server` gives for the end of its
// job, if it does: after a lost server the same command may succeed. Blocks for at most 4 s.
absl::Status WithFailureCode(absl::Status failed, const std::string& server);

}  // namespace eps

#endif  // EPS_WORKER_AWAIT_JOB_H_
