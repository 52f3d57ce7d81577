#ifndef EPS_WORKER_INTERRUPT_H_
#define EPS_WORKER_INTERRUPT_H_

#include "base/exit_code.h"

namespace eps {

// Handles SIGINT and SIGTERM: the first one makes Interrupted() true, the second one ends the
// process at once with its own exit code, 130 or 143. Process-wide.
void HandleInterrupts();
bool Interrupted();
// Returns the exit code of a process that ends because of the first signal. REQUIRES Interrupted().
ExitCode InterruptExitCode();

}  // namespace eps

#endif  // EPS_WORKER_INTERRUPT_H_
