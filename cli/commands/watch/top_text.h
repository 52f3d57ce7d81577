#ifndef EPS_CLI_COMMANDS_WATCH_TOP_TEXT_H_
#define EPS_CLI_COMMANDS_WATCH_TOP_TEXT_H_

#include <cstddef>
#include <string>

#include "cli/commands/watch/cluster_watch.h"

namespace eps {

// Returns the screen of `eps top`: lines of at most `columns` characters, at most `rows` of them,
// the most important first.
std::string TopText(const ClusterWatch::View& view, size_t columns, size_t rows);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_WATCH_TOP_TEXT_H_
