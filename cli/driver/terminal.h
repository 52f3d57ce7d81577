#ifndef EPS_CLI_DRIVER_TERMINAL_H_
#define EPS_CLI_DRIVER_TERMINAL_H_

// The output of a run on stdout: lines that stay and, on a terminal, a last line that is replaced
// in place while the others scroll above it. One last line per process. Thread-safe. Remove the
// last line before anything else writes to the terminal, as the log does on stderr.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace eps {

// Returns whether a last line can be replaced: stdout is a terminal, TERM is set and not "dumb",
// and NO_COLOR is empty or not set.
bool TerminalReplacesLines();
// Returns the width of the terminal; 80 if it is unknown.
size_t TerminalColumns();

// Shows `line`, without a newline and shorter than the terminal's width, in place of the previous
// last line. REQUIRES TerminalReplacesLines().
void ShowLastLine(const std::string& line);
// Removes the last line, if there is one.
void RemoveLastLine();
// Writes complete lines above the last line, and flushes.
void WriteLines(absl::string_view text);

}  // namespace eps

#endif  // EPS_CLI_DRIVER_TERMINAL_H_
