#ifndef EPS_CLI_LAUNCH_INTERRUPT_H_
#define EPS_CLI_LAUNCH_INTERRUPT_H_

#include "base/exit_code.h"

namespace eps {

// Handles SIGINT and SIGTERM. In graceful mode the first signal only makes Interrupted() true; any
// other signal kills the children and exits with its own code, 130 or 143. Process-wide; call
// HandleInterrupts once. All functions are thread-safe.
void HandleInterrupts();
void SetGraceful(bool graceful);
bool Interrupted();
// Returns the code of a run that the first signal ends early: kInterrupted for SIGINT, kTerminated
// for SIGTERM. REQUIRES Interrupted().
ExitCode InterruptCode();

// Makes SIGUSR1 a wish for a checkpoint. Without it, the signal ends the process.
void HandleSaveRequests();
// Returns true once after one or more such signals.
bool TakeSaveRequest();

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_INTERRUPT_H_
