// `eps dashboard`: a page that shows running servers, live.

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/config/app_arguments.h"
#include "base/status_macros.h"
#include "cli/commands/jobs/board.h"
#include "cli/commands/watch/cluster_watch.h"
#include "cli/commands/watch/page_answers.h"
#include "cli/launch/interrupt.h"
#include "cli/launch/security/security_flags.h"
#include "wire/channel.h"

namespace eps {
namespace {

constexpr std::chrono::milliseconds kLook{100};  // between two looks at the signals

}  // namespace

absl::Status RunDashboard(const std::vector<std::string>& arguments) {
  CLI::App app{"Serves a page that shows running servers, live, to the browser of this machine.",
               "eps dashboard"};
  BoardOptions options;
  AddBoardOptions(&app, &options);
  std::string listen = "127.0.0.1:8080";
  app.add_option(
      "--listen", listen,
      "loopback address of the page; port 0 chooses a free one (default: " + listen + ")");
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> servers, ServersOfBoard(options.servers));
  const absl::Status valid = CheckAddress(listen, /*allow_any_port=*/true);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--listen: ", std::string(valid.message())));
  }
  if (!IsLoopback(listen)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "--listen: ", listen,
        " can be reached from other machines, and the page has neither TLS nor passwords; listen "
        "on 127.0.0.1 and forward the port (ssh -L, kubectl port-forward)"));
  }
  EPS_RETURN_IF_ERROR(UseSecurity(options.security));
  HandleInterrupts();
  SetGraceful(true);
  const ClusterWatch watch(servers);
  auto http = HttpServer::Start(
      listen, [&watch](const HttpRequest& request) { return AnswerPage(watch, request); });
  if (!http.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", listen, ": ",
                                               std::string(http.status().message()),
                                               "; change --listen"));
  }
  std::printf("eps dashboard: http://%s (Ctrl-C ends it)\n", (*http)->address().c_str());
  std::fflush(stdout);
  while (!Interrupted()) std::this_thread::sleep_for(kLook);
  return absl::OkStatus();
}

}  // namespace eps
