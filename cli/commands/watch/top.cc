// `eps top`: running servers in a terminal, live.

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/config/app_arguments.h"
#include "base/status_macros.h"
#include "cli/commands/jobs/board.h"
#include "cli/commands/watch/cluster_watch.h"
#include "cli/commands/watch/top_text.h"
#include "cli/launch/interrupt.h"
#include "cli/launch/security/security_flags.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kFirstLook{6};
constexpr int kLooksPerScreen = 10;
constexpr std::chrono::milliseconds kLook{100};  // between two looks at the signals
constexpr size_t kUnlimited = 10'000;

// xterm's control sequences: another screen without a cursor, and back; to the top left corner;
// erase to the end of the line, and of the screen.
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";
constexpr char kEraseLine[] = "\x1b[K";
constexpr char kEraseBelow[] = "\x1b[J";

void Write(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

std::string Screen(const ClusterWatch::View& view) {
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1;
  const std::string text =
      TopText(view, known ? size.ws_col : 80, known ? size_t{size.ws_row} - 1 : 23);
  return absl::StrCat(kHome, absl::StrReplaceAll(text, {{"\n", absl::StrCat(kEraseLine, "\n")}}),
                      kEraseBelow);
}

}  // namespace

absl::Status RunTop(const std::vector<std::string>& arguments) {
  CLI::App app{"Shows running servers in the terminal, live; Ctrl-C ends it.", "eps top"};
  BoardOptions options;
  AddBoardOptions(&app, &options);
  bool once = false;
  app.add_flag("--once", once, "print once; the default if stdout is not a terminal");
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> servers, ServersOfBoard(options.servers));
  EPS_RETURN_IF_ERROR(UseSecurity(options.security));
  ClusterWatch watch(servers);
  watch.WaitForFirstLook(std::chrono::steady_clock::now() + kFirstLook);
  if (once || isatty(STDOUT_FILENO) == 0) {
    Write(TopText(watch.Now(), kUnlimited, kUnlimited));
    return absl::OkStatus();
  }
  HandleInterrupts();
  SetGraceful(true);
  Write(kEnter);
  while (!Interrupted()) {
    Write(Screen(watch.Now()));
    for (int i = 0; i < kLooksPerScreen && !Interrupted(); ++i) std::this_thread::sleep_for(kLook);
  }
  Write(kLeave);
  return absl::OkStatus();
}

}  // namespace eps
