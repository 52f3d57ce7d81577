#ifndef EPS_CLI_COMMANDS_WATCH_PAGE_ANSWERS_H_
#define EPS_CLI_COMMANDS_WATCH_PAGE_ANSWERS_H_

#include "cli/commands/watch/cluster_watch.h"
#include "wire/http/http_server.h"

namespace eps {

// Answers a request to the page of `eps dashboard`:
//
//   /, /page.css, /page.js      the page
//   /api/state                  servers (as `eps status --json`), jobs (as `eps job ls --json`),
//                               events, the last step
//   /api/steps?job=ID&after=N   the records of job ID after serial number N; of another job, all
//
// A Host that is not this machine is refused, because only a page of a foreign site sends one (DNS
// rebinding). Thread-safe.
HttpAnswer AnswerPage(const ClusterWatch& watch, const HttpRequest& request);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_WATCH_PAGE_ANSWERS_H_
