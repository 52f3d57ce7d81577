#ifndef EPS_CLI_LAUNCH_INTERRUPT_H_
#define EPS_CLI_LAUNCH_INTERRUPT_H_

namespace eps {

// SIGINT and SIGTERM: while graceful, the first one is remembered for whoever asks; any other one
// kills the children and ends the process with exit code 130.
void HandleInterrupts();
void SetGraceful(bool graceful);
bool Interrupted();

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_INTERRUPT_H_
